"""The reward `code`: the program of an answer, rows that bring tests, and refusals before a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Prompt
from posttrain.environments.data import data
from posttrain.methods.grpo import grpo
from posttrain.rewards.rules import code as rule
from posttrain.rewards.rules.code import code, program_of
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.runs.build import scorer_of
from posttrain.sandbox import available
from posttrain.sandbox.available import cause, sandbox, why_not
from posttrain.sandbox.host import _contained
from posttrain.sandbox.types import Limits, Program

needs_sandbox = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")
HEAD = "from typing import List\n\ndef first(xs: List[int]) -> int:\n    '''The first.'''\n"
FIRST = Prompt.text("he", HEAD, entry_point="first", test="def check(candidate):\n    assert candidate([4, 5]) == 4\n")
ADD = Prompt.text(
    "add", "Write add.", test_list=["assert add(1, 2) == 3", "assert add(2, 2) == 4", "assert add([1], [2]) == [1, 2]"]
)


def test_the_last_block_is_the_program() -> None:
    text = "<think>```python\nno\n```</think>First:\n```\nx = 1\n```\nbetter:\n  ```python title=a\ny = 2\n  ```\nDone."
    assert program_of(ADD, text) == "y = 2\n"
    assert program_of(ADD, "def add(a, b): return a") == "def add(a, b): return a"
    assert program_of(ADD, "<think>def add(a, b): ...") == ""  # a thought that was not closed answers nothing
    assert program_of(ADD, "  \n") == ""


def test_the_head_of_a_function_stands_before_its_body() -> None:
    assert program_of(FIRST, "    return xs[0]\n", "first") == HEAD + "    return xs[0]\n"
    assert program_of(FIRST, "def first(xs):\n    return xs[0]", "first").startswith(HEAD + "\ndef first")


@needs_sandbox
def test_the_score_is_all_or_a_share() -> None:
    assert code(ADD, "def add(a, b): return a + b") == 1.0
    assert code(ADD, "def add(a, b): return 4") == 0.0
    assert code(ADD, "def add(a, b): return 4", partial=True) == pytest.approx(1 / 3)
    assert code(FIRST, "    return xs[0]") == 1.0
    assert code(FIRST, "    return xs[1]") == 0.0
    assert code(ADD, "") == 0.0


@needs_sandbox
def test_a_program_that_never_ends_is_worth_nothing_rather_than_unknown() -> None:
    assert code(ADD, "def add(a, b):\n    while True: pass", seconds=0.4) == 0.0


def test_rows_with_tests_are_told_of_the_reward() -> None:
    rows = [{"question": f"Write add number {i}.", "test_list": ["assert add(1, 2) == 3"]} for i in range(3)]
    env = data(rows)
    with pytest.raises(UserError, match="its rows come with tests; run them with --reward code"):
        scorer_of(Config(), grpo, env)


@needs_sandbox
def test_it_scores_a_batch_side_by_side() -> None:
    right, wrong = "def add(a, b): return a + b", "def add(a, b): return a"
    scorer = build_scorer("code(partial=True)", data([{"question": "Write add.", **ADD.info}]))
    found, report = scorer.texts([ADD] * 6, [right, wrong] * 3)
    assert found == [1.0, 0.0] * 3 and report.masked == 0


def test_without_tests_it_fails_and_does_not_score() -> None:
    with pytest.raises(ValueError, match="no tests in a form that is known"):
        code(Prompt.text("x", "2+2?", "4"), "4")


def test_what_cannot_work_is_refused_before_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no language named 'pyton'; did you mean 'python'"):
        rule.ready(language="pyton")
    with pytest.raises(UserError, match="seconds > 0"):
        rule.ready(seconds=0)
    with pytest.raises(UserError, match="did you mean 'seconds'"):
        find("code(sconds=3)", "reward")
    monkeypatch.setattr(available, "why_not", lambda: "no sandbox can be made here; do this")
    with pytest.raises(UserError, match="do this"):
        rule.ready()


# ---- machines without a sandbox


def asked_why(prefix: list[str], path: str = "/usr/bin:/bin") -> str:
    """What is said in a process of its own."""
    source = "from posttrain.sandbox.available import why_not; print(why_not())"
    python = [sys.executable] if not prefix else ["/usr/bin/python3"]
    done = subprocess.run(
        [*prefix, *python, "-c", source], env={"PATH": path, "PYTHONPATH": str(Path(available.__file__).parents[2])},
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    return done.stdout.strip()


def test_without_bubblewrap_it_says_what_to_install(tmp_path: Path) -> None:
    for name in ("setpriv", "prlimit"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    said = asked_why([], str(tmp_path))
    assert "needs bwrap, and it is not installed; type: apt-get install bubblewrap" in said and "\n" not in said


@needs_sandbox
def test_without_user_namespaces_it_says_what_to_allow() -> None:
    shut = ["setpriv", "--reuid", "60899", "--regid", "60899", "--clear-groups", "unshare", "-U", "-r", "sh", "-c",
            'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"', "sh"]  # fmt: skip
    if subprocess.run([*shut, "/usr/bin/python3", "-c", ""], capture_output=True).returncode:
        pytest.skip("only root can become a user in a namespace of its own that may make no other")
    said = asked_why(shut)
    assert "allows no user namespaces; start the container with" in said and "\n" not in said


def test_words_of_bubblewrap_become_advice() -> None:
    assert "sysctl kernel.unprivileged_userns_clone=1" in cause(
        "bwrap: No permissions to create new namespace, likely because ..."
    )
    assert "apparmor_restrict_unprivileged_userns=0" in cause("bwrap: setting up uid map: Permission denied")
    assert "--cap-add SETUID" in cause("setpriv: setresuid failed: Invalid argument")
    assert "none can be made here: bwrap: Something new" in cause("bwrap: Something new")


def test_root_of_the_host_is_told_from_root_of_a_container() -> None:
    assert not _contained("0 0 4294967295\n")  # the host, or a container of its root: another user is taken
    assert not _contained("0 0 1\n")  # the host's root in disguise: there is nobody to become, so setpriv refuses
    assert _contained("0 1000 1\n")  # a plain user outside: as good as any
    assert not _contained("0 1000 1\n1 100000 65536\n")  # a rootless container has other users too


def test_unsafe_code_is_off_and_says_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    available._warn.cache_clear()
    done = sandbox(allow_unsafe_code=True).run(Program("python", "import os; print(os.path.exists('/etc/passwd'))"))
    assert done.stdout == "True\n"
    assert "unisolated: they can read and delete your files and use the network" in capsys.readouterr().err
    late = sandbox(allow_unsafe_code=True).run(Program("python", "import time; time.sleep(9)"), Limits(seconds=0.2))
    assert late.why == "wall time"
    with pytest.raises(UserError, match="without a sandbox only Python"):
        sandbox(allow_unsafe_code=True).run(Program("bash", "echo"))
