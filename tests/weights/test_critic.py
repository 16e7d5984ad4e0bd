"""Critics: where they begin, their rates and norms, time alone, checkpoints, several of them, and what they take."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.advantages.gae import gae
from posttrain.advantages.gae_by_reward import gae_by_reward
from posttrain.core.assemble import assemble
from posttrain.core.batch import Batch
from posttrain.core.config import Config, to_dict
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.losses.value.value_loss import value_losses
from posttrain.methods.ppo import ppo
from posttrain.models.lora import add_lora
from posttrain.policies.reward_folder import save_reward_model
from posttrain.runs.critics import from_reward_model
from posttrain.runs.estimate import Machine, Work, estimate
from posttrain.runs.run import Run
from posttrain.train import train
from posttrain.weights.critic import is_critic
from posttrain.weights.learner import Learner
from posttrain.weights.parallel import Local
from tests.models import tiny
from tests.runs import tiny_run
from tests.runs.test_estimate import TINY

METHOD = ppo.but(rollout=ppo.rollout.but(n=2), critic=CriticSettings(pace=3.0, warmup=2))


def begun(steps: int, folder: Path) -> Learner:
    """A run of PPO with adapters, whose critic learns alone for two steps, up to so many steps."""
    settings = tiny_run.config(steps=steps, save_every=1)
    with Run(folder, to_dict(tiny_run.config())) as run:
        loop = tiny_run.build(run, settings, METHOD)
        loop.policy.critic = None  # its critic has adapters too
        policy = add_lora(loop.policy, 2)
        learner = Learner(policy, METHOD, 0, 3e-3, 3, 1.0, 64)
        loop.learners = {"policy": learner}
        train(loop)
        return learner


def test_a_run_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole = begun(5, tmp_path / "whole")
    begun(3, tmp_path / "cut")
    again = begun(5, tmp_path / "cut")
    assert (again.updates, again.critic_updates) == (whole.updates, whole.critic_updates) == (3 * 4, 5 * 4)
    for kind, table in whole.tensors().items():
        got = again.tensors()[kind]
        assert got.keys() == table.keys() and all(torch.equal(got[k], x) for k, x in table.items()), kind
    assert not any(k.startswith("critic.model") and "lora" not in k for k in whole.tensors()["weights"])


def stepped(
    critic: CriticSettings, max_norm: float = 1e9, step: int = 0, **how: Any
) -> tuple[Learner, dict[str, float]]:
    """One update of PPO; the first of its warm-up of 4."""
    policy = tiny.policy()
    learner = Learner(policy, ppo.but(epochs=1, minibatches=1), lr=1e-3, warmup=4, max_norm=max_norm, critic=critic)
    if policy.critic is not None:
        tiny.randomise(policy.critic.head, seed=2)
    made = tiny.rollouts(((3, 5), (3, 2), (6, 4), (6, 3)))
    for i, r in enumerate(made):
        r.reward = float(i % 2)
    rows, batch = assemble([pt.Group(made[0].prompt, made[:2]), pt.Group(made[2].prompt, made[2:])])
    batch = learner.annotate(rows, batch)
    adv_BT, return_BT = gae(batch)
    return learner, learner.update(rows, batch.but(adv_BT=adv_BT, return_BT=return_BT), step)


def test_rates_and_norms_are_its_own() -> None:
    learner, seen = stepped(CriticSettings(pace=4.0))
    assert seen["lr"] == pytest.approx(1e-3 / 4) and seen["critic_lr"] == pytest.approx(4e-3 / 4)
    learner, seen = stepped(CriticSettings(lr=7e-4, max_norm=1e-3), max_norm=0.05)
    assert seen["critic_lr"] == pytest.approx(7e-4 / 4)
    norms = [math.sqrt(sum(float(p.grad.norm()) ** 2 for _, p in half)) for half in (learner._own, learner._critic)]
    assert norms == pytest.approx([0.05, 1e-3], rel=1e-4) and seen["critic_grad_norm"] > 1 and seen["grad_norm"] > 0.05


def test_alone_it_learns_and_the_policys_own_warm_up_waits() -> None:
    for step, alone in ((0, True), (1, True), (2, False)):
        learner, seen = stepped(CriticSettings(warmup=2), step=step)
        start = tiny.policy()
        same = [
            torch.equal(a, b) for a, b in zip(learner.policy.model.parameters(), start.model.parameters(), strict=True)
        ]
        assert all(same) == alone and (learner.updates, learner.critic_updates) == (0 if alone else 1, 1)
        assert (seen["lr"] == 0.0) == alone and seen["grad_norm"] > 0
    learner, _ = stepped(CriticSettings("shared", warmup=2))
    assert all(
        torch.equal(a, b) for a, b in zip(learner.policy.model.parameters(), start.model.parameters(), strict=True)
    )
    assert learner.policy.critic.model is None and len(learner._critic) == 2  # a head on the policy's network


@pytest.mark.parametrize("whose", ["critic", "policy"])
@pytest.mark.parametrize("warmup", [0, 2])
def test_a_gradient_that_is_not_finite_in_one_half_moves_neither(
    whose: str, warmup: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Local, named: Any) -> None:
        next(p for n, p in named if is_critic(n) == (whose == "critic") and p.grad is not None).grad.fill_(math.inf)

    monkeypatch.setattr(Local, "reduce", broken)
    learner, seen = stepped(CriticSettings(warmup=warmup))
    assert (learner.updates, learner.critic_updates, learner.skipped, seen["skipped"]) == (0, 0, 1, 1.0)
    assert math.isnan(seen["grad_norm"]) and math.isfinite(seen["critic_grad_norm"]) == (whose == "policy")
    assert not learner.optimiser.state


def test_a_reward_model_as_the_start(tmp_path: Path) -> None:
    scored = tiny.policy().as_reward_model()
    tiny.randomise(scored.score, seed=7)
    save_reward_model(scored, tmp_path)
    policy = add_lora(tiny.policy(), 2)
    policy.critic = from_reward_model(str(tmp_path), policy, Config())
    rows = tiny.rollouts(((3, 5), (6, 2)))
    value_BT = policy.forward(rows, ("value_after_BT",))["value_after_BT"]
    want_B = scored.forward(rows, ("score_B",))["score_B"]
    torch.testing.assert_close(
        torch.stack([value_BT[0, 4], value_BT[1, 1]]), want_B
    )  # its score is the value at the end
    names = [n for n, p in policy.critic.named_parameters() if p.requires_grad]
    assert all("lora" in n or n.startswith("head.") for n in names) and any("lora_a" in n for n in names)
    with pytest.raises(UserError, match="there is no such folder"):
        from_reward_model("runs/nowhere", policy, Config())
    other = tiny.policy(tiny.decoder(vocab_size=50))
    with pytest.raises(UserError, match="its tokens are not those of the policy"):
        from_reward_model(str(tmp_path), other, Config())


@pytest.mark.derived("advantage/gae-by-reward", "term/value-losses")
def test_a_critic_per_reward_by_hand() -> None:
    # lam 1: A_k = R_k - V_k. Component a: outcome 2, values .5, 1: 1.5, 1; the rest (1 - 2 on the last, .25 on the first):
    # to come -.75, -1, values 0, 0. Mixed 1 a + 2 rest: 1.5 - 1.5 = 0, 1 - 2 = -1; targets 2, 2 and -.75, -1
    ones = torch.ones(1, 2)
    old_BTK = torch.tensor([[[0.5, 0.0], [1.0, 0.0]]])
    b = Batch(mask_BT=ones, reward_BT=torch.tensor([[0.25, 1.0]]), old_value_BTK=old_BTK, value_BTK=old_BTK + 1.0,
              **{"reward:a_B": torch.tensor([2.0])})  # fmt: skip
    adv_BT, return_BTK = gae_by_reward(b, ("a", "rest"), (1.0, 2.0), lam=1.0, whiten=False)
    assert adv_BT.tolist() == [[0.0, -1.0]] and return_BTK.tolist() == [[[2.0, -0.75], [2.0, -1.0]]]
    # values one above the old ones: errors (1.5 - 2)^2 + (1 + .75)^2 and (2 - 2)^2 + (1 + 1)^2, halved; clipped at .2 from the
    # old ones: (.7 - 2)^2 > (1.5 - 2)^2, and (1.2 - 2)^2 > 0 for a; the other critic's unclipped error is the larger
    told = value_losses(b.but(return_BTK=return_BTK), clip=None)
    assert told[0].tolist() == pytest.approx([(0.25 + 3.0625) / 2, (0.0 + 4.0) / 2])
    clipped = value_losses(b.but(return_BTK=return_BTK))
    assert clipped[0].tolist() == pytest.approx([(1.69 + 3.0625) / 2, (0.64 + 4.0) / 2])
    with pytest.raises(UserError, match="2 critics for 1 rewards"):
        gae_by_reward(b, ("a",))


def test_settings() -> None:
    vapo = find_method("vapo")
    assert vapo.critic.asked(Config(steps=400)).warmup == 50 and vapo.critic.asked(Config(steps=40)).warmup == 10
    asked = vapo.critic.asked(Config(critic_lr=1e-4, critic_warmup=3, critic_max_norm=2.0, critic="shared"))
    assert (asked.lr, asked.warmup, asked.max_norm, asked.start, asked.pace) == (1e-4, 3, 2.0, "shared", 2.0)
    with pytest.raises(UserError, match="the policy would never learn"):
        vapo.critic.asked(Config(steps=5, critic_warmup=5))
    with pytest.raises(UserError, match="or --critic-warmup 0"):
        vapo.critic.asked(Config(steps=1, critic_warmup=1))
    with pytest.raises(UserError, match="--critic-lr is for a method with a critic"):
        pt.run(method="grpo", critic_lr=1e-5, model="/no/such/model")
    with pytest.raises(UserError, match=r"critic_max_norm is 0\.0; a norm is more than 0"):
        Config(critic_max_norm=0.0)


def test_memory() -> None:
    """Its own: weights, gradients, moments and activations twice; with adapters (256 numbers) no second trunk; on the policy: none."""
    sizes = {}
    for kind in ("", "own", "shared"):
        for rank in (0, 2):
            sizes[kind, rank] = estimate(
                TINY, Work(2, 3, 5, 7, 15, lora=rank, critic=kind), Machine(1.0, 1.0, 1e9)
            ).memory
    for rank in (0, 2):
        alone, own = sizes["", rank], sizes["own", rank]
        assert sizes["shared", rank] == alone
        assert own["weights"] == alone["weights"] * (2 if rank == 0 else 1)
        assert all(own[k] == 2 * alone[k] for k in ("gradients", "moments", "activations"))
    assert sizes["own", 2]["gradients"] == 4 * 2 * 256
