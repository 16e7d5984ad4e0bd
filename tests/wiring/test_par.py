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
