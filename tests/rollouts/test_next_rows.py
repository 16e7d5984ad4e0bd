"""Written rows of the next step are read before the update of this one is waited for; the run is the same run."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import posttrain
from posttrain.core.loop import Loop
from posttrain.core.protocols import RolloutRequest
from posttrain.core.types import Group, Prompt
from posttrain.policies import language
from posttrain.prompts.uniform import uniform
from posttrain.rollouts import sources
from posttrain.rollouts.sources import Coming
from posttrain.runs.in_memory import Listed
from posttrain.weights.parallel import Local

ROWS = [
    {"prompt": f"What is {i}+1?", "chosen": str(i + 1), "rejected": str(i + 2)} for i in range(10)
]  # two passes and a half


def run(folder: Path, rows: Any = ROWS, **changes: Any) -> dict[str, torch.Tensor]:
    plain: dict[str, Any] = {"model": "pocket", "task": rows, "method": "dpo", "steps": 5, "prompts": 5, "eval_problems": 0, "name": "rows",
                             "device": "cpu", "threads": 1, "save_every": 2}  # fmt: skip
    posttrain.run(**(plain | changes), runs=str(folder))
    from posttrain.runs.checkpoint import newest

    found = newest(folder / "rows" / "checkpoints", "train")
    assert found is not None
    return found.tables["weights"]


def test_the_next_rows_are_read_before_the_update_is_waited_for_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    read, moved, backward = language.read_ahead, Local.moved, Local.backward
    monkeypatch.setattr(language, "read_ahead", lambda *a: (seen.append("read"), read(*a))[1])
    monkeypatch.setattr(Local, "moved", lambda self, *a: (seen.append("moved"), moved(self, *a))[1])
    monkeypatch.setattr(Local, "backward", lambda self, *a: (seen.append("backward"), backward(self, *a))[1])
    with_it = run(tmp_path / "with")
    first = seen.index("backward")  # before it the reference has read all rows, those of the second step too
    assert seen[first:] == [*("backward", "moved", "read"), *("backward", "read", "moved") * 4], (
        "nothing is read between"
    )
    monkeypatch.setattr(sources.LocalSource, "meanwhile", lambda self: None)
    without = run(tmp_path / "without")
    assert with_it.keys() == without.keys() and all(torch.equal(x, without[name]) for name, x in with_it.items())


def test_a_mistake_in_the_next_rows_is_told_when_they_are_asked_for() -> None:
    def choose() -> list[Any]:
        raise ValueError("a row that cannot be read")

    came = Coming(3, choose, None)
    came.work()
    assert came.prompts is None and came.read is None


def test_rows_that_are_read_from_the_disk_as_they_come_are_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []
    plain = Coming.__init__
    monkeypatch.setattr(Coming, "__init__", lambda self, at, *a: (begun.append(at), plain(self, at, *a))[1])
    run(tmp_path / "plain", steps=2)
    assert begun == [1, 2]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    run(tmp_path / "stream", str(file), steps=2, stream=True)
    assert begun == [1, 2]


def test_what_is_read_is_read_once() -> None:
    """Every minibatch of every learner has time for it."""
    asked: list[int] = []
    policy = SimpleNamespace(reading=lambda prompts: ("read", *prompts))
    came = Coming(3, lambda: [asked.append(1), len(asked)], policy)  # type: ignore[list-item, func-returns-value]
    came.work()
    came.work()
    assert came.prompts == [None, 1] and came.read == ("read", None, 1)


def test_only_prompts_that_are_a_function_of_the_step_are_asked_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that looks at results, or counts, is asked when its step has come."""

    class Own(uniform.fn):  # type: ignore[misc, name-defined]
        pass

    prompts, env = [Prompt.text(str(i), "?") for i in range(4)], Listed([])
    rollout: Any = SimpleNamespace(card=SimpleNamespace(data="preferences"))
    policy: Any = SimpleNamespace(reading=lambda prompts: None)
    for curriculum, some in ((uniform.fn(), True), (Own(), False)):
        source = sources.LocalSource({"policy": policy}, env, rollout, None, curriculum, (None, 2, 0))  # type: ignore[arg-type]
        asked = RolloutRequest({"policy": policy}, prompts, None, 0, 6, env)  # type: ignore[arg-type]
        source._refills = 3
        coming = source._after(asked)
        assert (coming is not None) == some
        assert coming is None or coming.at == 6 + 1 + 3


def test_rows_of_another_step_or_another_round_are_not_taken() -> None:
    """What was read is for one place among the prompts, and for the first round of its step."""
    policy: Any = SimpleNamespace(reading=lambda prompts: None)
    env, curriculum = Listed([Prompt.text(str(i), "?") for i in range(6)]), uniform.fn()
    how: Any = (None, 2, 0)
    source = sources.LocalSource({"policy": policy}, env, None, None, curriculum, how)  # type: ignore[arg-type]
    taken = [Prompt.text("ahead", "?")]
    source._coming = Coming(2, lambda: taken, policy)
    source.meanwhile()
    assert source.propose(2) is taken
    assert [p.id for p in source.propose(1)] == [p.id for p in curriculum.propose(2, 1)]
    source._last, source._step = [Group(p, []) for p in curriculum.propose(2, 1)], 1  # the same step again: refills
    assert [p.id for p in source.propose(1)] == [p.id for p in curriculum.propose(2, 2)] and source._refills == 1


def test_every_learner_has_time_for_it() -> None:
    """One that learns at every second step only must not be the one that is waited for."""
    learners = {role: SimpleNamespace() for role in ("policy", "reward")}
    source: Any = SimpleNamespace(meanwhile=lambda: None)
    method: Any = SimpleNamespace(advantage=SimpleNamespace(live=lambda: None))
    Loop(None, method, None, learners, source, None)  # type: ignore[arg-type]
    assert all(one.meanwhile is source.meanwhile for one in learners.values())
