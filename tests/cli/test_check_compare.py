"""`check` and `compare` are thin: what they ask of the lab, what they print, and their exit codes."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from tests.cli.conftest import call

RECORD = {"id": "dpo", "verdict": "shown", "seeds": [0, 1], "seconds": 1.0, "checks": []}


def lab(monkeypatch: pytest.MonkeyPatch, name: str, answer: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    asked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        asked.append((args, kwargs))
        return answer

    home = importlib.import_module("posttrain.runs.compare" if name == "compare" else "claims.machinery.record")
    monkeypatch.setitem(vars(home), name, stand_in)
    return asked


@pytest.mark.parametrize(("verdict", "code"), [("shown", 0), ("not shown", 1)])
def test_check_tells_and_returns_the_verdict(monkeypatch: pytest.MonkeyPatch, verdict: str, code: int) -> None:
    asked = lab(monkeypatch, "check", [RECORD | {"verdict": verdict}])
    said = call("check", "dpo", "--no-write", "--seeds", "100-101,7", "--jobs", "3", "--device", "cuda")
    assert said.code == code and f"dpo: {verdict} (2 seeds" in said.out and "next: posttrain find dpo" in said.out
    ids, family, how = asked[0][0]
    assert (ids, family, how.write, how.seeds, how.jobs, how.device) == (["dpo"], None, False, (100, 101, 7), 3, "cuda")
    assert how.work.name == "trials"  # apart from what may be recorded


def test_check_json(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lab(monkeypatch, "check", [RECORD])
    assert json.loads(call("check", "--family", "preference", "--json").out) == [RECORD]
    ids, family, how = asked[0][0]
    assert (ids, family, how.write, how.seeds, how.merge, str(how.work)) == (
        [],
        "preference",
        True,
        None,
        None,
        "runs/checks",
    )


def test_check_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    lab(monkeypatch, "check", [RECORD])
    assert "--seeds is 'a-b'; give numbers and ranges" in call("check", "dpo", "--seeds", "a-b").err
    assert "--device is 'gpu'; give cuda or cpu" in call("check", "dpo", "--device", "gpu").err
    assert "say which claims" in call("check").err


def test_all_claims_are_counted() -> None:
    said = call("check", "--summary")
    assert said.code == 0 and "| level | shown | not shown | shown at the first attempt |" in said.out
    assert "claims were run:" in said.out and "at the first attempt" in said.out


def test_check_of_a_claim_that_is_not_there() -> None:
    said = call("check", "no-such-claim")
    assert said.code == 2 and "no claim named 'no-such-claim'" in said.err


class Comparison:
    def __str__(self) -> str:
        return "grpo is as good as rloo"

    def to_dict(self) -> dict[str, Any]:
        return {"grpo": 0.5, "rloo": 0.5}


def test_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = lab(monkeypatch, "compare", Comparison())
    said = call(
        "compare", "grpo", "rloo(epochs=2)", "--seeds", "3", "--steps", "7", "--task", "counting", "--picture", "a.png"
    )
    assert said.code == 0 and "as good as" in said.out and "a.png" in said.out
    asked_for = {"task": "counting", "seeds": 3, "steps": 7, "picture": "a.png", "config": Config()}
    assert asked == [((["grpo", "rloo(epochs=2)"],), asked_for)]
    call("compare", "grpo", "rloo", "--prompts", "3", "--sampling.max-tokens", "9")
    assert asked[-1][1]["config"] == Config(prompts=3, sampling=Sampling(max_tokens=9))
    assert json.loads(call("compare", "grpo", "rloo", "--json").out) == {"grpo": 0.5, "rloo": 0.5}


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["grpo"], "needs two methods or more"),
        (["grpo", "rloo", "--seeds", "1"], "--seeds is 1"),
        ([], "required: METHOD"),
    ],
)
def test_compare_mistakes(monkeypatch: pytest.MonkeyPatch, argv: list[str], sentence: str) -> None:
    lab(monkeypatch, "compare", Comparison())
    said = call("compare", *argv)
    assert said.code == 2 and sentence in said.err


def test_processes_of_their_own_find_the_experiments_from_any_folder(tmp_path: Path) -> None:
    """As installed, outside the checkout: what runs beside must be able to import the claims too."""
    root = Path(posttrain.__file__).parent.parent
    script = tmp_path / "beside.py"
    script.write_text(
        "if __name__ == '__main__':\n"
        "    import sys\n"
        "    from concurrent.futures import ProcessPoolExecutor\n"
        "    from multiprocessing import get_context\n"
        f"    sys.path.append({str(root)!r})\n"
        "    import posttrain.commands.check as check\n"
        f"    sys.path[:] = [p for p in sys.path if p not in ('', {str(root)!r})]\n"
        "    with ProcessPoolExecutor(1, get_context('spawn')) as pool:\n"
        "        print(pool.submit(check.claims_module('runner').seeds_from, '1-2').result())\n"
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[1, 2]\n", done.stderr
