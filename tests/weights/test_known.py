"""What the reference says of written pairs is computed once and kept; no bit of a run depends on whether it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.turn import Observation, Turn
from posttrain.policies.load import load_model
from posttrain.runs import build
from posttrain.runs.checkpoint import newest
from posttrain.weights import known
from posttrain.weights.beside import told
from posttrain.weights.reference import Frozen

ROWS = [{"prompt": f"{i}+{i}?", "chosen": f"{2 * i}", "rejected": "no" * (i % 4 + 1)} for i in range(12)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(known, "place", lambda: tmp_path / "cache")
    return tmp_path / "cache"


class Seen:
    """Counts the passes of the reference, and may end a run at a step."""

    def __init__(self, stop: int = -1) -> None:
        self.stop, self.passes, self.known = stop, 0, None

    def on_begin(self, loop: Any, *_: Any) -> None:
        reference = loop.learner.reference
        self.known, forward = getattr(reference, "known", None), reference.policy.forward

        def counted(*args: Any) -> Any:
            self.passes += 1
            return forward(*args)

        reference.policy.forward = counted

    def on_step(self, loop: Any, step: int, metrics: Any) -> None:
        if step == self.stop:
            raise KeyboardInterrupt


def run(folder: Path, steps: int = 6, stop: int = -1, **more: Any) -> tuple[dict[str, torch.Tensor], Seen]:
    """Weights after steps of 4 pairs of 12, half of the last epoch's being held out; and what was seen."""
    seen = Seen(stop)
    settings: dict[str, Any] = {"lr": 1e-3, "save_every": 2, "schedule": "constant", "eval_problems": 2, **more}
    try:
        pt.run(
            model="pocket",
            task=ROWS,
            method="dpo",
            steps=steps,
            prompts=4,
            name="x",
            runs=folder,
            callbacks=[seen],
            **settings,
        )
    except KeyboardInterrupt:
        return {}, seen
    ck = newest(folder / "x" / "checkpoints", "train")
    assert ck is not None
    return ck.tables["weights"], seen


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_every_row_is_computed_once_and_a_second_run_computes_none(tmp_path):
    first, one = run(tmp_path / "a")
    again, two = run(tmp_path / "b")
    other, three = run(tmp_path / "c", lr=2e-3)  # another run on the same pairs
    assert (
        one.passes == one.known.computed == 3 and len(one.known.rows) > 16
    )  # three steps of 4 are a pass over some 10 pairs
    assert (two.passes, three.passes) == (0, 0) and equal(first, again) and not equal(first, other)


def test_the_first_epoch_has_the_bits_of_a_reference_that_is_asked_at_every_step(tmp_path, monkeypatch):
    first, _ = run(tmp_path / "a", steps=2)
    monkeypatch.setattr(build, "know_reference", lambda loop: None)
    live, seen = run(tmp_path / "b", steps=2)
    assert seen.known is None and seen.passes == 2 and equal(first, live)


@pytest.mark.parametrize("keep", [True, False])
def test_a_run_that_was_stopped_ends_with_the_same_bits_whatever_is_on_the_disk(tmp_path, cache, keep):
    whole, _ = run(tmp_path / "a", steps=8)
    for file in [] if keep else list(cache.glob("*")):
        file.unlink()
    run(tmp_path / "b", steps=8, stop=4)
    for file in [] if keep else list(cache.glob("*")):
        file.unlink()
    resumed, seen = run(tmp_path / "b", steps=8)
    assert equal(whole, resumed) and seen.passes == (0 if keep else 3)


def test_other_weights_are_another_reference(tmp_path):
    run(tmp_path / "a")
    policy = load_model("pocket", "cpu")
    with torch.no_grad():
        next(policy.parameters())[0, 0] += 1e-3
    seen = Seen()
    pt.run(
        model=policy,
        task=ROWS,
        method="dpo",
        steps=2,
        prompts=4,
        name="x",
        runs=tmp_path / "b",
        callbacks=[seen],
        eval_problems=2,
    )
    assert seen.passes == 2


def test_a_damaged_file_and_a_disk_that_cannot_be_written_cost_time_only(tmp_path, cache, monkeypatch):
    first, _ = run(tmp_path / "a")
    for file in cache.glob("*.sqlite"):
        file.write_bytes(b"no database" * 1000)
    damaged, one = run(tmp_path / "b")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(known, "place", lambda: tmp_path / "file" / "below")
    nowhere, two = run(tmp_path / "c")
    assert (one.passes, two.passes) == (3, 3) and equal(first, damaged) and equal(first, nowhere)


def test_a_reference_that_moves_is_asked_at_every_step(tmp_path):
    method = pt.find_method("dpo")
    moving = Seen()
    pt.run(
        model="pocket",
        task=ROWS,
        method=method.but(reference="ema"),
        steps=3,
        prompts=4,
        name="y",
        runs=tmp_path,
        callbacks=[moving],
        eval_problems=2,
    )
    assert moving.known is None and moving.passes == 3


def test_rows_that_were_not_foreseen_are_asked_about():
    asked = []

    class Policy(torch.nn.Linear):
        def forward(self, rows, names):  # type: ignore[override]
            asked.append(len(rows))
            return {"logp_BT": torch.ones(len(rows), 2)}

        def clone(self):
            return self

    reference = Frozen()
    reference.start(Policy(1, 1))
    reference.known = known.Known(list, 100)  # type: ignore[attr-defined]
    row = Turn.of(Observation(torch.tensor([1])), torch.tensor([2, 3]), torch.zeros(2))
    assert told(reference, [row], ["ref_logp_BT"])["ref_logp_BT"].tolist() == [[1.0, 1.0]] and asked == [1]
