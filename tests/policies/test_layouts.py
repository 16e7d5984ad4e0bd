"""One step of training is the same however its rows are laid out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posttrain.core.assemble import assemble
from posttrain.core.batch import Batch
from posttrain.core.critic import CriticSettings
from posttrain.core.method import Method
from posttrain.core.turn import Turn
from posttrain.core.types import Group, Rollout
from posttrain.methods.grpo import grpo
from posttrain.models.lora import add_lora
from posttrain.weights.learner import Learner
from tests.models import tiny
from tests.policies.test_language import LAYOUTS, LENGTHS, calm_policy, close, full_policy, gradient


def groups(pairs: tuple[tuple[int, int], ...] = ()) -> list[Group]:
    """Three prompts of two answers each, rewards that differ within a group."""
    made: list[Rollout] = tiny.rollouts(LENGTHS)
    out = []
    for i in range(0, 6, 2):
        pair = made[i : i + 2]
        for j, r in enumerate(pair):
            r.prompt, r.reward, r.index = pair[0].prompt, float(1 - j) + 0.1 * i, j
            r.rewards = {"first": 0.5 * j}
        out.append(Group(pair[0].prompt, pair, pairs))
    return out


def with_failure(pairs: tuple[tuple[int, int], ...] = ()) -> list[Group]:
    """One reward failed."""
    out = groups(pairs)
    out[2].rollouts[1].reward = float("nan")
    return out


def paired() -> list[Group]:
    return groups(((0, 1),))


def paired_with_failure() -> list[Group]:
    return with_failure(((0, 1),))


PPO = grpo.but(advantage="gae", aggregate="token-mean", terms=("value-loss", "entropy", "kl"))
EACH = CriticSettings(rewards=("first", "rest"))
METHODS: dict[str, tuple[Method, Callable[[], list[Group]]]] = {
    "grpo": (grpo.but(terms=("kl",)), with_failure),
    "dapo": (grpo.but(loss="dapo", aggregate="token-mean", terms=("entropy",)), with_failure),
    "gspo": (grpo.but(loss="gspo", aggregate="sequence-mean", terms=()), groups),
    "ppo": (PPO, with_failure),
    "ppo, critic on the policy": (PPO.but(critic=CriticSettings("shared")), with_failure),
    "ppo, critic with adapters": (PPO, with_failure),
    "ppo, a critic per reward": (
        grpo.but(
            advantage="gae_by_reward(rewards=('first', 'rest'))",
            aggregate="token-mean",
            terms=("value-losses",),
            critic=EACH,
        ),
        groups,
    ),
    "token worth": (grpo.but(advantage="oreal", terms=("token-outcome",)), groups),
    "dpo": (grpo.but(rollout="pairs", loss="dpo(beta=0.5)", aggregate="pair-mean", terms=()), paired_with_failure),
    "bradley-terry": (grpo.but(loss="bradley-terry", aggregate="pair-mean", terms=()), paired),
}


def one_step(name: str, micro_tokens: int, layout: str) -> tuple[Tensor, dict[str, float]]:
    """The gradient of one update, with old and reference log-probabilities that differ from the policy's own."""
    method, make = METHODS[name]
    policy = full_policy() if name == "bradley-terry" else calm_policy()
    policy.layout = layout
    if "adapters" in name:
        tiny.randomise(add_lora(policy, 2), seed=3, scale=0.1)
    learner = Learner(policy, method, max_norm=1e9, micro_tokens=micro_tokens)
    if policy.critic is not None:
        tiny.randomise(policy.critic.head, seed=2)
    if learner.reference is not None:
        tiny.randomise(learner.reference.policy, seed=4, scale=0.1)
    rows, batch = assemble(make())
    batch = learner.annotate(rows, batch)
    with torch.no_grad():
        noise_BT = 0.3 * torch.randn(batch.mask_BT.shape, generator=torch.Generator().manual_seed(5))
        batch = batch.but(old_logp_BT=policy.forward(rows)["logp_BT"] + noise_BT)
    return gradient_of(learner, rows, credited(method, batch))


def credited(method: Method, batch: Batch) -> Batch:
    adv = method.advantage(batch)
    if isinstance(adv, tuple):
        return batch.but(adv_BT=adv[0], **{"return_BTK" if adv[1].dim() == 3 else "return_BT": adv[1]})
    return batch.but(adv_BT=adv)


def gradient_of(learner: Learner, rows: list[Turn], batch: Batch) -> tuple[Tensor, dict[str, float]]:
    seen = learner.update(rows, batch, step=0)
    return gradient(learner.policy), seen


@pytest.mark.parametrize("name", METHODS)
def test_a_step_does_not_depend_on_its_layout(name: str) -> None:
    """Whole, one row (or pair) at a time, two or three at a time; padded, packed, and with prompts read once."""
    whole, seen = one_step(name, 10**6, "padded")
    norm = math.hypot(seen["grad_norm"], seen.get("critic_grad_norm", 0.0))
    assert whole.abs().max() > 1e-3 and norm == pytest.approx(float(whole.norm()), rel=1e-4)
    for micro_tokens in (10**6, 1, 28):
        for layout in LAYOUTS:
            got, also = one_step(name, micro_tokens, layout)
            close(got, whole)
            assert also["loss"] == pytest.approx(seen["loss"], abs=1e-5)


def test_pieces_are_pieces() -> None:
    """The control: fewer micro_tokens are more pieces, down to one pair, or one row where there are no pairs."""
    _, batch = assemble(paired())
    for micro_tokens, sizes in (
        (1, [2, 2, 2]),
        (28, [4, 2]),
        (10**6, [6]),
    ):  # 28 = 4 rows of 7; groups of two stay whole
        learner = Learner(tiny.policy(), METHODS["dpo"][0], micro_tokens=micro_tokens)
        assert [len(piece) for piece in learner._micro(batch, torch.arange(6))] == sizes
    _, batch = assemble(groups())
    assert len(list(Learner(tiny.policy(), grpo, micro_tokens=1)._micro(batch, torch.arange(6)))) == 6
