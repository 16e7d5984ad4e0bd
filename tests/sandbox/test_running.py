"""Sandboxes over time: many at once, their launcher killed, the warm interpreter killed, nothing left behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.sandbox.available import why_not
from posttrain.sandbox.bubblewrap import Bubblewrap
from posttrain.sandbox.types import Limits, Program, SandboxBroken
from posttrain.sandbox.warm import Warm

pytestmark = pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")
ROOT = Path(__file__).parents[2]


def soon(true: Callable[[], bool], seconds: float = 10.0) -> bool:
    """Whether it becomes true within some seconds."""
    until = time.monotonic() + seconds
    while not true() and time.monotonic() < until:
        time.sleep(0.01)
    return true()


def children_of(pid: int) -> list[int]:
    """All processes below one, as the kernel lists them."""
    found = (
        [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        if Path(f"/proc/{pid}").exists()
        else []
    )
    return found + [q for p in found for q in children_of(p)]


@pytest.mark.parametrize("box", [Bubblewrap(), Warm()], ids=["fresh", "warm"])
def test_many_at_once_each_have_their_own_answer_and_leave_nothing_open(box: Bubblewrap | Warm) -> None:
    source = (
        "import os, sys\nopen('mine', 'w').write(sys.stdin.read())\nprint(sorted(os.listdir('.')), open('mine').read())"
    )
    box.run(Program("python", ""))
    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda i: box.run(Program("python", source, stdin=str(i).encode())), range(18)))
    assert [d.stdout for d in done] == [f"['main.py', 'mine'] {i}\n" for i in range(18)]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_plain_user_runs_many_at_once() -> None:
    if os.getuid():
        pytest.skip("this user is one already")
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nfrom posttrain.sandbox.bubblewrap import Bubblewrap\n"
        "from posttrain.sandbox.warm import Warm\nfrom posttrain.sandbox.types import Program\n"
        "for box in (Bubblewrap(), Warm()):\n    with ThreadPoolExecutor(4) as pool:\n"
        "        print([d.stdout.strip() for d in pool.map(lambda i: box.run(Program('python', f'print({i})')), range(8))])\n"
    )
    as_user = ["setpriv", "--reuid", "60898", "--regid", "60898", "--clear-groups", "/usr/bin/python3", "-c", code]
    done = subprocess.run(
        as_user, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, cwd="/", capture_output=True, text=True
    )
    if "Permission denied" in done.stderr or "No module named" in done.stderr:
        pytest.skip("this checkout cannot be read by other users")
    assert done.stdout == f"{[str(i) for i in range(8)]}\n" * 2, done.stderr


@pytest.mark.parametrize("kind", ["Bubblewrap", "Warm"])
def test_programs_end_with_their_launcher(kind: str) -> None:
    module = kind.lower()
    code = f"from posttrain.sandbox.{module} import {kind}\nfrom posttrain.sandbox.types import *\n{kind}().run(Program('python', 'import time; time.sleep(60)'), Limits(seconds=60))"
    launcher = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        deep = 2 if kind == "Bubblewrap" else 3  # bwrap, program; bwrap, interpreter, program
        assert soon(lambda: len(children_of(launcher.pid)) >= deep, 20)
        time.sleep(0.2)
        below = children_of(launcher.pid)
    finally:
        launcher.send_signal(signal.SIGKILL)
        launcher.wait()
    assert soon(lambda: not any(_alive(p) for p in below)), [
        Path(f"/proc/{p}/cmdline").read_text()[:80] for p in below if _alive(p)
    ]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_a_dead_interpreter_is_replaced() -> None:
    warm = Warm()
    try:
        assert warm.run(Program("python", "print(1)")).stdout == "1\n"
        assert warm.process is not None
        for pid in [*children_of(warm.process.pid), warm.process.pid]:
            os.kill(pid, signal.SIGKILL)
        warm.process.wait()
        assert warm.run(Program("python", "print(2)")).stdout == "2\n"
    finally:
        warm.close()


def test_one_program_leaves_no_trace_for_the_next() -> None:
    warm = Warm()
    try:
        leave = "import builtins, json, sys, os\nbuiltins.print = json.dumps = None\nsys.path.append('x')\nopen('/tmp/left', 'w')\nos.chmod('.', 0o777)"
        assert warm.run(Program("python", leave)).ok
        found = warm.run(
            Program("python", "import json, sys, os\nprint(json.dumps(1), 'x' in sys.path, os.listdir('/tmp'))")
        )
        assert found.stdout == "1 False ['main.py']\n"
    finally:
        warm.close()


def test_a_fork_of_this_process_has_an_interpreter_of_its_own() -> None:
    warm = Warm()
    try:
        warm.run(Program("python", ""))
        mine, there = warm.control, warm.owner
        warm.owner = there + 1  # as it is in a fork
        assert warm.run(Program("python", "print(3)")).stdout == "3\n"
        assert warm.control is not mine
        assert mine is not None
        mine.close()
    finally:
        warm.close()


def test_a_sandbox_that_does_not_start_is_no_verdict_about_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.sandbox.bubblewrap.surroundings", lambda *_: ["--no-such-option"])
    with pytest.raises(SandboxBroken, match="did not start: bwrap: Unknown option --no-such-option"):
        Bubblewrap().run(Program("python", "print(1)"))
    done_by_program = "import sys\nprint('bwrap: Unknown option', file=sys.stderr)\nsys.exit(1)"
    monkeypatch.undo()
    assert Bubblewrap().run(Program("python", done_by_program)).why == "ended"  # saying so is not enough


def test_a_program_that_ends_as_it_is_ended_is_told_of() -> None:
    talk = Bubblewrap().talk(Program("python", ""))
    talk.handle.link.shutdown(socket.SHUT_RDWR)  # it ends by itself ...
    assert select.select([talk.handle.done], [], [], 20)[0]
    assert talk.close().exit == 1  # ... before it is ended, and how it did is not lost


def test_exit_codes() -> None:
    warm = Warm()
    try:
        for box in (Bubblewrap(), warm):
            assert [
                box.run(Program("python", s)).exit for s in ("", "import sys; sys.exit(3)", "exit('no')", "1/0")
            ] == [0, 3, 1, 1]
            assert box.run(Program("python", "exit('no')")).stderr == "no\n"
            assert box.run(Program("python", "import os; os.abort()")).why in ("signal 6", "signal 11")
            assert (
                box.run(Program("python", "import atexit; atexit.register(print, 'bye'); print('hi')")).stdout
                == "hi\nbye\n"
            )
    finally:
        warm.close()


def test_packages_are_there_where_they_are_given() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        Path(folder, "extra.py").write_text("x = 5")
        program = Program("python", "import extra; print(extra.x)")
        warm = Warm(packages=(folder,))
        assert [box.run(program).stdout for box in (Bubblewrap(packages=(folder,)), warm, Bubblewrap())] == [
            "5\n",
            "5\n",
            "",
        ]
        warm.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/x", "main.py", ".stdin", "a\0b"])
def test_files_lie_in_the_program_s_folder(name: str) -> None:
    with pytest.raises(UserError, match="a program's file has a plain name"):
        Program("python", "", {name: b""})


def test_wrong_limits_and_languages_are_refused() -> None:
    with pytest.raises(UserError, match="the limit seconds is a number above 0, got 0"):
        Limits(seconds=0)
    with pytest.raises(UserError, match="no language named 'perl'"):
        Program("perl", "")
    with pytest.raises(UserError, match="runs Python programs; for bash use Bubblewrap"):
        Warm().run(Program("bash", ""))
