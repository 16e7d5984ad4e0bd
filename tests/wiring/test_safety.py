"""What sets PAR, HC-RLHF, and the test of robustness apart, as registered."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import posttrain as pt
from tests.wiring.spies import traced


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def test_par_pays_the_preference_over_an_answer_of_the_start() -> None:
    trace = traced("par(steps=2, m=2)", reward=length, num_generations=4, prompts=2, lr=0.02)
    assert trace.parts == ["policy->start", "par"]
    one, two = trace.of("policy")
    assert one.reference == two.reference == one.before != two.before
    drawn = [d for d in trace.samples if d.phase == "par" and d.weights == one.before]
    assert len(drawn) >= 3, "the start also answers the questions of the second step, to be compared with"
    first = [r for g in trace.steps[0].groups for r in g.rollouts]
    for r, paid in zip(first, one.batch["reward_BT"].sum(-1).tolist(), strict=True):  # the KL is 0 at the start
        others = [r.rewards[f"reference{j}"] for j in range(2)]
        assert r.reward == len(r.text) and all(x == int(x) for x in others)
        assert paid == pytest.approx(sum(1 / (1 + math.exp(x - r.reward)) for x in others) / 2, abs=1e-4)
    assert trace.phases[0].method.shaping[-1].params["coef"] == 0.005


def test_hc_rlhf_prices_the_bound_and_tests_on_fresh_prompts() -> None:
    def harm(prompt: Any, text: str) -> float:
        return float("a" in text)

    rows = [{"question": f"how is it with {i}?", "answer": str(i)} for i in range(160)]
    with pytest.raises(pt.UserError, match="no solution found"):
        traced("hc-rlhf(cost='{file}:harm', n=6, steps=2)", rows=rows, reward={"reward": length, "harm": harm})
    trace = traced(
        "hc-rlhf(cost='{file}:harm', n=6, steps=2, limit=2.0)", rows=rows, reward="{file}:reward",
        says=["a", "bb", "ccc"], num_generations=4,
    )  # fmt: skip
    assert trace.parts == ["before", "candidate", "safety-test", "safe"]
    assert all(r.rewards["cost"] == harm(None, r.text) for s in trace.steps for r in s.rollouts)
    held, price = trace.phases[0].loop.shaping
    assert held.name == "pessimistic-cost" and price.params["coef"] == 0.02
    learned = {g.prompt.id for s in trace.steps for g in s.groups}
    tested = [d for d in trace.samples if d.phase == "safety-test"]
    assert len({p for d in tested for p in d.prompts}) == 6 and learned
    assert trace.summary["safety"]["passed"] == 1


def test_the_search_for_a_margin_is_guided_and_nothing_is_trained() -> None:
    trace = traced("rl-pgd-robustness(problems=2)")
    assert not trace.updates and trace.parts == ["measure"]
    found = trace.summary["robustness"]
    assert set(found) == {"margin_guided", "margin_random"}
    assert (
        0 < found["margin_guided"] <= found["margin_random"]
        and torch.isfinite(torch.tensor(list(found.values()))).all()
    )
