"""What sets TOPR's rounds apart, on the registered plan: who gave the answers, how often they are learned from, and how they are weighed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from tests.wiring.spies import ROWS, traced


def graded(prompt: Any, text: str) -> float:
    return float(sum(map(ord, text)) % 3 == 0)


def test_a_round_collects_answers_and_learns_from_them_several_times() -> None:
    asked = "topr-rounds(rounds=2, questions=4, n=3, epochs=2)"
    trace = traced(asked, ROWS, graded, lr=0.03)
    assert trace.parts == ["collect.1", "topr.1", "collect.2", "topr.2"]
    one, two = trace.of(phase="topr.1"), trace.of(phase="topr.2")
    assert len(one) == len(two) == 4, "2 passes over 4 questions, 2 an update"
    assert all(u.optimiser_steps == 1 and not u.reference for u in (*one, *two))
    draws = {k: [d for d in trace.samples if d.phase == f"collect.{k}"] for k in (1, 2)}
    assert {d.weights for d in draws[1]} == {one[0].before} and {d.weights for d in draws[2]} == {one[-1].after}
    assert [d.prompts for d in draws[1]] == [d.prompts for d in draws[2]], "the same questions in every round"
    for first in (
        one[0],
        two[0],
    ):  # as a round begins the policy is the one that was asked: mu is known and the ratio 1
        own = first.batch["mask_BT"]
        assert (first.batch["old_logp_BT"] * own).min() < -1
        torch.testing.assert_close(first.passes[0].batch["logp_BT"] * own, first.batch["old_logp_BT"] * own)
    for k, updates in ((1, one), (2, two)):
        said = sorted(t for d in draws[k] for t in d.texts)
        learned = [r.text for s in trace.steps if s.phase == f"topr.{k}" for r in s.rollouts]
        assert len(said) == 12 and sorted(learned) == sorted(said * 2), "every answer twice, and nothing else"
        for u in updates:
            (only,), own = u.passes, u.batch["mask_BT"]
            ratio = torch.exp(((only.batch["logp_BT"] - u.batch["old_logp_BT"]) * own).sum(-1))
            credit = torch.tensor([graded(None, r.text) - 0.5 for r in _rows(trace, u)])
            weight = torch.where(credit < 0, ratio.clamp(0, 1), torch.ones(()))
            want = (weight * credit)[:, None] * own / len(u.rows)
            torch.testing.assert_close(only.pull["logp_BT"], want, rtol=2e-3, atol=2e-6)
    late = two[-1]
    moved = (late.passes[0].batch["logp_BT"] - late.batch["old_logp_BT"]) * late.batch["mask_BT"]
    assert moved.abs().max() > 1e-3, "answers must be off policy for the taper to show"


def test_a_round_asks_for_other_answers_and_the_bar_is_an_option() -> None:
    """A policy that hardly moves would say the same again, were a round drawn with the seed of the one before."""
    trace = traced("topr-rounds(rounds=2, questions=4, n=3, epochs=0.5, c=0.2)", ROWS, graded, lr=1e-9)
    one, two = ([t for d in trace.samples if d.phase == f"collect.{k}" for t in d.texts] for k in (1, 2))
    assert len(one) == len(two) == 12 and one != two
    for u in trace.updates:
        due = torch.tensor([graded(None, r.text) - 0.2 for r in _rows(trace, u)])[:, None] * u.batch["mask_BT"]
        torch.testing.assert_close(u.batch["adv_BT"] * u.batch["mask_BT"], due)


def _rows(trace: Any, update: Any) -> list[Any]:
    return [r for s in trace.steps if (s.phase, s.step) == (update.phase, update.step) for r in s.rollouts]


def test_weights_can_be_taken_back() -> None:
    with pytest.raises(pt.UserError, match="way to weigh old answers"):
        traced("topr-rounds(weights='clipped')", ROWS, graded)
    trace = traced("topr-rounds(rounds=1, questions=2, n=3, epochs=2, weights='none')", ROWS, graded, lr=0.03)
    for u in trace.updates:
        credit = torch.tensor([graded(None, r.text) - 0.5 for r in _rows(trace, u)])
        want = credit[:, None] * u.batch["mask_BT"] / len(u.rows)
        torch.testing.assert_close(u.passes[0].pull["logp_BT"], want, rtol=2e-3, atol=2e-6)
