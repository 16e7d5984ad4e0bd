"""What a formula reads is what it declares: the check before a run rests on it."""

from __future__ import annotations

import pytest
from torch import Tensor

from posttrain.core import laws
from posttrain.core.batch import Batch
from posttrain.core.registry import Part
from tests.package import package_parts

FORMULAS = package_parts(
    "shaping", "advantage", "policy_loss", "preference_loss", "supervised_loss", "reward_model_loss", "term"
)
ALWAYS = {"mask_BT", "logp_BT", "length_B"}


class Spied(Batch):
    """A batch that remembers which streams were asked for."""

    asked: set[str]

    def __init__(self, **streams: Tensor | None) -> None:
        super().__init__(**streams)
        self.asked = set()

    def but(self, **changes: Tensor | None) -> Batch:
        out = Spied(**{**self.streams, **changes})
        out.asked = self.asked
        return out

    def __getitem__(self, name: str) -> Tensor:
        if hasattr(self, "asked"):
            self.asked.add(name)
        return super().__getitem__(name)


@pytest.mark.parametrize("part", FORMULAS, ids=lambda p: f"{p.card.stage}/{p.name}")
def test_a_formula_reads_what_it_declares(part: Part) -> None:
    """What it takes from the whole minibatch before it is cut is its own, and reads on its behalf."""
    batch = Spied(**laws.example().streams)
    given = batch if part.card.whole is None else part.card.whole(batch, {}, **part.params)
    part.live()(given)
    asked = {n for n in (batch.asked | getattr(given, "asked", set())) - ALWAYS if not n.startswith("reward:")}
    assert asked - (set(given) - set(batch)) == set(part.card.reads)


def test_the_spy_sees_a_stream_that_was_not_declared() -> None:
    batch = Spied(**laws.example().streams)
    _ = batch["adv_BT"] + batch["old_logp_BT"]
    assert {"adv_BT", "old_logp_BT"} <= batch.asked
