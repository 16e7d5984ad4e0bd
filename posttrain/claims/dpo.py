"""DPO: the policy that fits the preference pairs is the optimum of reward minus beta KL; no reward model, no RL."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.types import Rollout
from posttrain.lab.claim import Check, Claim, claim
from posttrain.lab.exact import answer_logp, tilted
from posttrain.lab.fit import Listed, Worth, fit, numbered
from posttrain.lab.labels import chosen_only, labelled_pairs
from posttrain.lab.tabular import TabularPolicy
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.ppo import ppo
from posttrain.methods.reward_model import reward_model
from posttrain.methods.sft import sft
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

P, T, V, PAIRS = 4, 2, 4, 2000
BETAS = (2.0, 1.0, 0.5, 0.25)
DPO=(60,.1,100); PPO=(60,.05,16)
KLS = (0.25, 0.5, 1.0)  # where the frontiers are compared


@cache
def world(seed: int) -> tuple[TabularPolicy, Tensor, Listed]:
    """A reference policy, a hidden reward for each of the 16 answers to 4 prompts, and labelled pairs."""
    ref = TabularPolicy(P, T, V).randomise(1.0, "dpo ref", seed)
    worth_PN = torch.randn(P, V**T, generator=rng.torch_generator("dpo worth", seed))

    def utility(rollouts: list[Rollout]) -> Tensor:
        return torch.stack([worth_PN[r.context[0], r.actions[0] * V + r.actions[1]] for r in rollouts])

    return ref, worth_PN, labelled_pairs(ref, numbered(P).prompts, utility, PAIRS, seed)


def settings(seed: int, steps: int, lr: float, prompts: int) -> Config:
    return Config(seed=seed, steps=steps, prompts=prompts, lr=lr, warmup=0, max_norm=100.0)


def dpo_arm(seed: int) -> dict[str, float]:
    ref, worth_PN, pairs = world(seed)
    made = []
    for beta in BETAS:
        made.append(ref.clone())
        fit(made[-1], dpo.but(loss=dpo_loss.but(beta=beta)), pairs, settings(seed, DPO[0], DPO[1], DPO[2]))
    best_PN = tilted(answer_logp(ref), worth_PN, 1.0)
    far = 0.5 * (answer_logp(made[BETAS.index(1.0)]).exp() - best_PN.exp()).abs().sum(-1).mean()
    return {"share": share(seed, made), "distance": float(far)}


def ppo_arm(seed: int) -> dict[str, float]:
    ref, _, pairs = world(seed)
    judge = ref.as_reward_model()
    fit(judge, reward_model, pairs, settings(seed, 60, 0.1, 100))
    scorer = Worth(lambda rollouts: judge.forward(rollouts, ("score",))["score_B"].detach())
    made = []
    for beta in BETAS:
        made.append(ref.clone())
        method = ppo.but(rollout=sample.but(n=PPO[2]), shaping=kl_in_reward.but(coef=beta))
        fit(made[-1], method, numbered(P), settings(seed, PPO[0], PPO[1], P), scorer)
    return {"share": share(seed, made)}


def chosen_arm(seed: int) -> dict[str, float]:
    ref, _, pairs = world(seed)
    policy, made = ref.clone(), []
    for part in range(4):
        fit(policy, sft, chosen_only(pairs), settings(seed + 1000 * part, 15, 0.1, 100))
        made.append(policy.clone())
    return {"share": share(seed, made)}


def share(seed: int, made: list[TabularPolicy]) -> float:
    """Of the reward that the best possible policy gains at equal KL, the share these gain; mean over KLS."""
    ref, worth_PN, _ = world(seed)
    ref_PN = answer_logp(ref)
    best = [point(tilted(ref_PN, worth_PN, 10 ** (2 - k / 16)), ref_PN, worth_PN) for k in range(64)]
    mine = [point(answer_logp(p), ref_PN, worth_PN) for p in made]
    return sum(gain_at(kl, mine) / gain_at(kl, best) for kl in KLS) / len(KLS)


def point(logp_PN: Tensor, ref_PN: Tensor, worth_PN: Tensor) -> tuple[float, float]:
    """(KL to the reference, reward gained over it), exactly."""
    p_PN = logp_PN.exp()
    kl_P = (p_PN * (logp_PN - ref_PN)).sum(-1)
    return float(kl_P.mean()), float(((p_PN - ref_PN.exp()) * worth_PN).sum(-1).mean())


def gain_at(kl: float, points: list[tuple[float, float]]) -> float:
    """The gain at a KL by straight lines between points, from (0, 0); past the last point its own."""
    line = [(0.0, 0.0), *sorted(points)]
    for (x0, y0), (x1, y1) in zip(line, line[1:]):
        if x0 <= kl <= x1:
            return y0 + (y1 - y0) * (kl - x0) / max(x1 - x0, 1e-9)
    return line[-1][1]
