"""The real loop around a tabular policy: it learns, it would notice a wrong sign, and it repeats itself bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from claims.worlds.exact import all_answers, expected
from claims.worlds.labels import chosen_only, labelled_pairs
from claims.worlds.tabular import TabularPolicy
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.types import Rollout
from posttrain.methods.dpo import dpo
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.runs.in_memory import FunctionScorer, fit, numbered, repeated, row

SETTINGS = Config(steps=10, prompts=8, lr=0.1, warmup=0)


def count_a(rollouts: list[Rollout]) -> Tensor:
    return torch.tensor([float((r.actions == 0).sum()) for r in rollouts])


def mean_a(policy: TabularPolicy) -> float:
    """The exact expected number of a's."""
    return float(expected(policy, (all_answers(policy)[0] == 0).sum(-1).float()).mean())


@pytest.mark.parametrize("method", [grpo, ppo])
def test_reward_rises_and_falls_with_its_sign(method) -> None:
    """Three letters out of three, uniform at first: one a on average."""
    up, down = TabularPolicy(2, 3, 3), TabularPolicy(2, 3, 3)
    assert mean_a(up) == pytest.approx(1.0)
    fit(up, method, repeated(2, 4), SETTINGS, FunctionScorer(count_a))
    fit(down, method, repeated(2, 4), SETTINGS, FunctionScorer(lambda rollouts: -count_a(rollouts)))
    assert mean_a(up) > 1.5 and mean_a(down) < 0.6
    assert up.critic is None  # a phase leaves no critic behind


def test_pairs_and_demonstrations_come_with_their_worth() -> None:
    start = TabularPolicy(2, 3, 3)
    pairs = labelled_pairs(start, numbered(2).prompts, count_a, 100, seed=0, sharpness=10.0)
    for method, env in ((dpo, pairs), (sft, chosen_only(pairs))):
        policy = start.clone()
        fit(policy, method, env, Config(steps=10, prompts=32, lr=0.1, warmup=0))
        assert mean_a(policy) > 1.2


def test_a_run_repeats_itself() -> None:
    made = []
    for _ in range(2):
        policy = TabularPolicy(2, 3, 3)
        made.append((fit(policy, grpo, repeated(2, 4), SETTINGS, FunctionScorer(count_a)), policy.table.detach()))
    assert made[0][0] == made[1][0] and torch.equal(made[0][1], made[1][1])


def test_after_is_called_with_each_step() -> None:
    seen: list[int] = []
    rows = fit(
        TabularPolicy(2, 3, 3),
        grpo,
        numbered(2),
        Config(steps=3, prompts=2, lr=0.1),
        FunctionScorer(count_a),
        seen.append,
    )
    assert seen == [0, 1, 2] and len(rows) == 3 and all("reward" in r for r in rows)


def test_a_sampler_that_differs_from_the_trainer_is_an_error() -> None:
    class Hot(TabularPolicy):
        def logp_all(self, row_B: Tensor, actions_BT: Tensor) -> Tensor:
            return super().logp_all(row_B, actions_BT) / 2

    with pytest.raises(UserError, match="sampler and trainer differ"):
        fit(Hot(2, 3, 3), grpo, numbered(2), SETTINGS, FunctionScorer(count_a))


def test_labels_follow_the_utility_and_its_noise() -> None:
    """With sharp labels and no flips the answer with more a's is always chosen; all flipped, never; half, half of them.

    Of pairs with as many a's, which are left out here, the label is a coin."""
    start = TabularPolicy(2, 3, 3)
    shares = []
    for flip in (0.0, 1.0, 0.5):
        pairs = labelled_pairs(start, [row(0), row(1)], count_a, 400, seed=1, sharpness=50.0, flip=flip)
        told = [(p.info["chosen"].count("a"), p.info["rejected"].count("a")) for p in pairs.prompts]
        unequal = [a > b for a, b in told if a != b]
        shares.append(sum(unequal) / len(unequal))
    assert shares[:2] == [1.0, 0.0]
    assert shares[2] == pytest.approx(0.5, abs=0.12)  # 4 standard errors of about 270 coins
    assert all(p.info["chosen"] != p.info["rejected"] for p in pairs.prompts)


def test_weak_labels_are_bradley_terry() -> None:
    """One letter a or b, utility 1 for a: P(a chosen) = sigmoid(1) = 0.731."""
    pairs = labelled_pairs(TabularPolicy(1, 1, 2), [row(0)], count_a, 2000, seed=2)
    share = sum(p.info["chosen"] == "a" for p in pairs.prompts) / pairs.size
    assert share == pytest.approx(0.731, abs=0.06)  # 4 standard errors of about 1000 pairs
