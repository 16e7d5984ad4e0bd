"""What sets PAR apart, on the registered plan: the reward model's preference over an answer of the start policy to the same prompt."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import pytest

import posttrain as pt
from tests.wiring.spies import ROWS, traced

PAIRS = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no"} for r in ROWS]


def many(prompt: Any, text: str) -> float:
    return float(len(text))


def test_without_a_reward_model_it_does_not_begin() -> None:
    with pytest.raises(pt.UserError, match=r"par is paid by a reward model: train it .*--plan.pairs"):
        traced("par(steps=1)")


def test_what_is_paid_is_the_preference_over_the_start_s_answer() -> None:
    trace = traced("par(steps=2)", reward=many, num_generations=4)
    updates = trace.of("policy", "par")
    assert updates[1].reference == updates[0].before, (
        "references and the KL are the start's, also when the policy has moved"
    )
    for step, update in zip(trace.steps, updates, strict=True):
        batch = update.batch
        for rollout, paid in zip(step.rollouts, batch["reward_BT"].sum(-1).tolist(), strict=True):
            other = rollout.rewards["reference0"]
            assert rollout.reward == len(rollout.text)
            if step is trace.steps[0]:  # the KL is 0
                assert paid == pytest.approx(1 / (1 + math.exp(other - rollout.reward)), abs=1e-3)
        of = {r.prompt.id: r.rewards["reference0"] for r in step.rollouts}
        assert all(r.rewards["reference0"] == of[r.prompt.id] for r in step.rollouts), (
            "a prompt has one reference answer"
        )


def test_the_slope_the_price_and_whose_answers_stand_beside() -> None:
    trace = traced("par(steps=2, k=0.3, beta=0.05)", reward=many, lr=0.02, num_generations=4)
    start, moved = (u.before for u in trace.of("policy", "par"))
    second, batch = trace.steps[1], trace.of("policy", "par")[1].batch
    beside = [d for d in trace.samples if d.step == 1 and d.weights == start]
    assert start != moved and len(beside) == 1, "the prompts of the second step are answered by the start too"
    theirs = dict(zip(beside[0].prompts, map(len, beside[0].texts), strict=True))
    away_B = ((batch["old_logp_BT"] - batch["ref_logp_BT"]) * batch["mask_BT"]).sum(-1)
    assert away_B.abs().max() > 0.1
    for r, paid, away in zip(second.rollouts, batch["reward_BT"].sum(-1).tolist(), away_B.tolist(), strict=True):
        other = next(n for asked, n in theirs.items() if r.prompt.last in asked)
        assert r.rewards["reference0"] == other
        # R = sigmoid(k (r - r_ref)) - beta KL
        assert paid == pytest.approx(1 / (1 + math.exp(0.3 * (other - len(r.text)))) - 0.05 * away, abs=1e-4)


def test_its_reward_model_is_trained_from_pairs() -> None:
    with_pairs = "par(steps=1,pairs='{file}')"
    trace = _with_pairs(with_pairs)
    assert [p.name for p in trace.phases] == ["reward-model", "par"]
    heads = trace.of("reward_model", "reward-model")
    assert heads and heads[0].batch["chosen_P"].numel() > 0
    paid = [r for s in trace.steps if s.phase == "par" for r in s.rollouts]
    assert all({"reward_model", "reference0"} <= set(r.rewards) for r in paid)
    assert all(r.reward == r.rewards["reward_model"] for r in paid), (
        "log-odds as the model gives them, in no other units"
    )
    with pytest.raises(pt.UserError, match="does not use --reward"):
        _with_pairs(with_pairs, reward=many)


def _with_pairs(name: str, **more: Any) -> Any:

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in PAIRS))
        return traced(name.replace("{file}", str(file)), num_generations=2, **more)
