"""BARFI by samples: the implicit gradient by hand, and the registered plan."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Rollout
from posttrain.runs.in_memory import numbered
from posttrain.systems.reward_shaping_safety import barfi
from posttrain.systems.reward_shaping_safety.barfi import SampledUpdate, centred, sampled_gradient
from tests.wiring.spies import traced


def both_actions(logit: float = 0.0) -> tuple[TabularPolicy, list[Rollout]]:
    """A policy over two actions, and one answer of each: at logits 0 the sample mean is the expectation."""
    policy = TabularPolicy(1, 1, 2, memory=False)
    with torch.no_grad():
        policy.table.copy_(torch.tensor([[[[logit, 0.0]]]]))
    observed = policy.observe(numbered(1).prompts[0])
    prompt = numbered(1).prompts[0]
    return policy, [Rollout.single(prompt, observed, torch.tensor([a]), torch.zeros(1)) for a in range(2)]


def test_the_sampled_gradient_by_hand() -> None:
    # pi = (1/2, 1/2), r_primary = (1, 0), r_aux = (0, 1): credit (1, -1) and (-1, 1). S = (phi_1 - phi_2) (p_0 - p_1), whose
    # Hessian is 0 here; the KL's is F = diag(p) - p p' with (1, -1) as an eigenvector of 1/2. beta = 1, l2 = 1/2: A (1, -1) = (1, -1).
    # g = d(p_0 - p_1)/dtheta = (1/2, -1/2), A^-1 g = g; d log p along g: (1/2, -1/2). dJ/dphi = mean_i c_i d_i = (1/2, -1/2)
    policy, rollouts = both_actions()
    credit = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    at = SampledUpdate(policy, rollouts, credit, torch.full((2,), -math.log(2)), beta=1.0, l2=0.5)
    phi = torch.tensor([0.6, 0.8])
    assert sampled_gradient(at, at, phi, rate=0.5, terms=20).tolist() == pytest.approx([0.5, -0.5], abs=2e-3)
    # one term of the series: rate g;  two: rate g (1 + (1 - rate))
    assert sampled_gradient(at, at, phi, rate=0.1, terms=1).tolist() == pytest.approx([0.05, -0.05], abs=1e-3)
    assert sampled_gradient(at, at, phi, rate=0.1, terms=2).tolist() == pytest.approx([0.095, -0.095], abs=1e-3)
    assert policy.table.flatten().tolist() == [0.0, 0.0], "the weights are exactly as they were"


def test_the_credit_is_less_the_siblings_mean() -> None:
    _, rollouts = both_actions()
    rollouts[0].rewards, rollouts[1].rewards = {"primary": 1.0, "aux": 0.0}, {"primary": 0.0, "aux": 3.0}
    for r in rollouts:
        r.reward = 0.0
    found, credit = centred([Group(rollouts[0].prompt, rollouts)])
    assert len(found) == 2 and credit.tolist() == [[1.0, -3.0], [-1.0, 3.0]]


def test_the_blend_is_paid_and_moves() -> None:
    functions = {"right": lambda prompt, text: float(len(text)), "close": lambda prompt, text: -float(text.count("a"))}
    trace = traced("barfi(aux='{file}:close',rounds=2,steps=1,beta=0.3)", reward=functions, num_generations=4, lr=0.03)
    assert trace.parts == ["policy->start", "inner.1", "outer.1", "inner.2", "outer.2"]
    blends = [[0.5**0.5, 0.5**0.5], *trace.summary["blends"]]
    for round, step in enumerate(trace.steps):
        for r in step.rollouts:
            a, b = blends[round]
            assert r.reward == pytest.approx(a * r.rewards["primary"] + b * r.rewards["aux"], abs=1e-5)
    assert blends[1] != pytest.approx(blends[0]) and sum(x * x for x in blends[2]) == pytest.approx(1.0)
    one, two = trace.of("policy")
    assert one.reference == two.reference == one.before
    kl_B = ((two.batch["old_logp_BT"] - two.batch["ref_logp_BT"]) * two.batch["mask_BT"]).sum(-1)
    earned_B = torch.tensor([r.reward for r in trace.steps[1].rollouts])
    assert kl_B.abs().max() > 1e-2
    torch.testing.assert_close(two.batch["reward_BT"].sum(-1), earned_B - 0.3 * kl_B, rtol=1e-4, atol=1e-4)


def test_a_heuristic_that_is_against_the_reward_loses_its_share() -> None:
    functions = {"right": lambda prompt, text: 3.0 * len(text), "close": lambda prompt, text: -float(len(text))}
    trace = traced("barfi(aux='{file}:close',rounds=1,steps=1)", reward=functions, num_generations=4, prompts=4)
    (blend,) = trace.summary["blends"]  # the primary reward is the sum of both, 2 len; it began at the plain sum
    assert blend[0] > 0.5**0.5 > blend[1]


def test_the_blend_is_judged_by_other_answers_than_it_was_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[list[str]]] = []

    def spied(update: SampledUpdate, outer: SampledUpdate, *rest: Any) -> torch.Tensor:
        seen.append([[r.text for r in batch.rollouts] for batch in (update, outer)])
        return sampled_gradient(update, outer, *rest)

    monkeypatch.setattr(barfi, "sampled_gradient", spied)
    functions = {"right": lambda prompt, text: float(len(text)), "close": lambda prompt, text: -float(text.count("a"))}
    trace = traced("barfi(aux='{file}:close',rounds=1,steps=1)", reward=functions, num_generations=4)
    ((inner, outer),) = seen
    drawn = [d.texts for d in trace.samples if d.phase.startswith("outer")]
    assert [inner, outer] == drawn[:2] and inner != outer, "two batches, one for each gradient"
    earned = [float(len(text) - text.count("a")) for text in outer]
    assert trace.summary["primary"] == pytest.approx([sum(earned) / len(earned)])


def test_without_a_heuristic_there_is_nothing_to_blend() -> None:
    with pytest.raises(UserError, match="name the heuristic"):
        traced("barfi", reward=lambda prompt, text: 1.0)
