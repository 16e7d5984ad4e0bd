"""The learned reward: reads the sampled tokens, is centred on a reference set, fails as data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Group
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.scorers.reward_model import RewardModel
from tests.runs import tiny_run


def reward_model() -> Any:
    policy = tiny_run.policy().as_reward_model()
    with torch.no_grad():
        policy.score.out.weight.normal_(generator=torch.Generator().manual_seed(0))
    return policy


def sampled(n: int = 4) -> list[Group]:
    prompts = [tiny_run.Count().prompt(i) for i in range(3)]
    made = tiny_run.policy().sample(prompts, n, tiny_run.config().sampling)
    return [Group(p, rollouts) for p, rollouts in zip(prompts, made, strict=True)]


def test_a_policy_without_a_head_is_refused() -> None:
    with pytest.raises(UserError, match="as_reward_model"):
        RewardModel(tiny_run.policy())


def test_scores_do_not_depend_on_the_pieces() -> None:
    rollouts = [r for g in sampled() for r in g.rollouts]
    model = RewardModel(reward_model())
    alone = torch.cat([model.policy.forward([r], ("score_B",))["score_B"] for r in rollouts]).detach()
    for tokens in (1, 40, 10_000):
        assert torch.allclose(model.raw(rollouts, tokens), alone, atol=1e-5)
    assert float(alone.std()) > 1e-3


def test_the_tokens_are_scored_not_the_text() -> None:
    groups = sampled()
    model = RewardModel(reward_model())
    model.score(groups)
    before = [r.reward for g in groups for r in g.rollouts]
    for g in groups:
        for r in g.rollouts:
            r.turns[-1].text = "something else"
    model.score(groups)
    assert [r.reward for g in groups for r in g.rollouts] == before


def test_centred_on_a_reference_set() -> None:
    rollouts = [r for g in sampled() for r in g.rollouts]
    plain = RewardModel(reward_model())
    score_B = plain.centred(rollouts).scores(rollouts)
    assert float(score_B.mean()) == pytest.approx(0, abs=1e-5)
    assert float(score_B.std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert score_B.argsort().tolist() == plain.raw(rollouts).argsort().tolist()


def test_an_indifferent_model_scales_nothing() -> None:
    rollouts = [r for g in sampled() for r in g.rollouts]
    untrained = RewardModel(tiny_run.policy().as_reward_model()).centred(rollouts)
    assert untrained.scores(rollouts).abs().max() == 0.0


def test_a_score_that_is_not_finite_masks_its_answer() -> None:
    groups = sampled()
    model = RewardModel(reward_model())
    with torch.no_grad():
        model.policy.score.out.bias.fill_(math.inf)
    report = model.score(groups)
    assert report.masked == 12 and all(r.failed for g in groups for r in g.rollouts)
    assert math.isnan(report.rewards[0].mean)


def test_the_report() -> None:
    groups = sampled()
    report = RewardModel(reward_model()).score(groups)
    rewards = [r.reward or 0.0 for g in groups for r in g.rollouts]
    assert (report.n, report.masked) == (12, 0)
    assert report.metrics()["reward/reward_model/mean"] == pytest.approx(sum(rewards) / 12)


def test_as_one_reward_among_others() -> None:
    """Summed with a rule in a Scorer: it takes (prompts, texts) and encodes them as demonstrations are."""
    model = RewardModel(reward_model())
    groups = sampled(1)
    RewardSum([("learned", model, 1.0), ("long", lambda prompt, text: 10.0, 1.0)], timeout=60).score(groups)
    for g in groups:
        r = g.rollouts[0]
        assert r.reward == pytest.approx(10 + float(model.scores([model.policy.written(r.prompt, r.text)])), abs=1e-4)
