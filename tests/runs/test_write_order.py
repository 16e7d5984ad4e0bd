"""What is written before what, and whole: a kill between two writes must not lose the first, nor a short write a part of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Phase, Plan
from posttrain.runs import plans, tables
from posttrain.runs import store as store_module
from posttrain.runs.learner_tables import learner_tables
from posttrain.runs.run import Run
from posttrain.runs.settings import agreed
from posttrain.runs.store import Store
from posttrain.runs.tables import intact, read_table, write_table
from tests.runs import tiny_run
from tests.runs.test_store import groups


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was written, in order."""
    seen: list[str] = []

    def watched(name: str) -> Any:
        real = getattr(Run, name)

        def call(self: Run, *args: Any, **more: Any) -> Any:
            seen.append(f"finish {args[0]}" if name == "finish" else name)
            return real(self, *args, **more)

        return call

    for name in ("write_notes", "write_summary", "write_held_out", "finish"):
        monkeypatch.setattr(Run, name, watched(name))
    return seen


def test_notes_are_written_before_their_part_is_finished(
    tmp_path: Path, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part that is finished is not done again, so its notes would be lost."""
    monkeypatch.setattr(plans, "load_policy", lambda settings: tiny_run.policy(settings.seed))

    def note(context: Context) -> None:
        context.notes["seen"] = 1

    phase = Phase("rl", tiny_run.method(), 1, lambda context: tiny_run.Count(), after=note)
    plan = Plan((Do("look", note), phase), "tiny")
    plans.run_plan(plan, tiny_run.config(name="ordered", eval_problems=0), tmp_path)
    assert order[:4] == ["write_notes", "finish look", "write_notes", "finish rl"] and "write_summary" in order[4:]


def test_work_that_is_in_the_notes_is_not_done_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between the notes of a part and its end, of work and of a phase: what notes add up stays as it was."""
    monkeypatch.setattr(plans, "load_policy", lambda settings: tiny_run.policy(settings.seed))

    def note(context: Context) -> None:
        context.notes.setdefault("seen", []).append(context.phase)

    phase = Phase("rl", tiny_run.method(), 1, lambda context: tiny_run.Count(), after=note)
    plan = Plan((Do("look", note), phase), "tiny")
    real = Run.finish
    for part in ("look", "rl"):

        def killed(self: Run, phase: str, part: str = part) -> None:
            if phase == part:
                raise KeyboardInterrupt
            real(self, phase)

        monkeypatch.setattr(Run, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            plans.run_plan(plan, tiny_run.config(name="killed", eval_problems=0), tmp_path)
    monkeypatch.setattr(Run, "finish", real)
    summary = plans.run_plan(plan, tiny_run.config(name="killed", eval_problems=0), tmp_path)
    assert summary["seen"] == ["look", "rl"] and "done" not in summary


def test_the_summary_is_written_before_the_run_is_finished(tmp_path: Path, order: list[str]) -> None:
    """A sweep takes a finished run's summary as it is."""
    pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), steps=1, prompts=1, num_generations=2, eval_problems=1,
        sampling={"max_tokens": 2}, runs=tmp_path, name="ordered",
    )  # fmt: skip
    assert order == ["write_summary", "write_held_out", "finish train"]


def test_a_plan_is_resumed_with_the_same_settings_alone(tmp_path: Path) -> None:
    """More steps go on with a single method; a plan divides them among its phases, so they are other settings."""
    old = {"steps": 4, "schedule": "constant", "plan": "tiny", "options": {"rounds": 2}}
    assert agreed(tmp_path, old, dict(old), False, True) == old
    for other in ({"steps": 5}, {"options": {"rounds": 3}}, {"plan": "tinier"}):
        with pytest.raises(UserError, match="holds a run with other settings"):
            agreed(tmp_path, old, old | other, False, True)


def test_token_pieces_that_were_taken_back_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "run.sqlite")
    store.token_bytes = lambda ids: [bytes([i]) for i in ids]
    with monkeypatch.context() as broken:
        broken.setattr(Store, "_trim", lambda *_: 1 / 0)  # after the pieces, in the same transaction
        with pytest.raises(ZeroDivisionError):
            store.log("train", 0, {}, groups(), 0.0)
    assert store.db.execute("SELECT COUNT(*) FROM pieces").fetchone()[0] == 0
    store.log("train", 0, {}, groups(), 0.0)
    assert {row[0] for row in store.db.execute("SELECT id FROM pieces")} >= {5, 6}


def test_a_finished_phase_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[bool] = []
    store = Store(tmp_path / "run.sqlite")
    monkeypatch.setattr(store_module, "_flush", lambda db, path: flushed.append(store.finished("train")))
    store.log("train", 0, {"loss": 1.0}, [], 0.0)
    assert flushed == []
    store.finish("train")
    assert flushed == [True]


class Short:
    """A file whose writes take at most seven bytes, as those of a nearly full pipe or disk may."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.file = open(*args, **kwargs)  # noqa: SIM115 - closed by __exit__

    def write(self, data: Any) -> int:
        return self.file.write(data[:7])

    def fileno(self) -> int:
        return self.file.fileno()

    def __enter__(self) -> Short:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def test_a_write_that_takes_less_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"w": torch.arange(50, dtype=torch.float32), "i": torch.tensor([2**60])}
    with monkeypatch.context() as slow:
        slow.setattr(tables, "open", Short, raising=False)
        want = write_table(tmp_path / "t.safetensors", table)
    assert intact(tmp_path / "t.safetensors", want)
    back = read_table(tmp_path / "t.safetensors")
    assert all(torch.equal(back[k], x) for k, x in table.items())


@pytest.mark.parametrize("shared", [True, False])
def test_weights_that_two_learners_share_are_written_once(shared: bool) -> None:
    def learner(policy: Any, value: float) -> Any:
        made = {"weights": {"w": torch.tensor([value])}, "optimiser": {"w|m": torch.tensor([-value])}}
        return SimpleNamespace(policy=policy, tensors=lambda: made, masters=SimpleNamespace(rounded=dict))

    one, other = object(), object()
    both, _ = learner_tables({"policy": learner(one, 1.0), "verifier": learner(one if shared else other, 2.0)})
    kept = {"weights", "optimiser", "verifier.optimiser"}
    assert set(both) == (kept if shared else kept | {"verifier.weights"})
    assert both["weights"]["w"].item() == 1.0 and both["verifier.optimiser"]["w|m"].item() == -2.0
