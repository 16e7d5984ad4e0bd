"""Reward-robust RLHF: mix in the worst case of an ensemble, and optimising longer stops making it worse."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Rollout
from posttrain.rewards.runtime.scorer import ScoreReport
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import fit, numbered
from posttrain.systems.reward_shaping_safety.reward_robust_rlhf import (
    GaussianHeads,
    fit_heads,
    most_confident,
    robust_mix,
    robust_ppo,
)

P, T, V, RARE, HEADS, DATA, NOISE, STEPS = 24, 5, 12, 5, 5, 960, 1.0, 60


class World:
    """Letters of known worth, some rare and bad, and Gaussian heads fitted to noisy scores of the start's answers."""

    def __init__(self, seed: int) -> None:
        draws = rng.torch_generator("robust", seed)
        self.start = TabularPolicy(P, T, V, memory=False).randomise(0.5, "robust start", seed)
        with torch.no_grad():
            self.start.table[..., -RARE:] -= 3.0
        self.worth_PV = torch.randn(P, V, generator=draws)
        self.worth_PV[:, -RARE:] = -0.5
        p_PTV = self.start.table.detach()[:, :, 0].softmax(-1)
        self.mean_P = (p_PTV * self.worth_PV.unsqueeze(1)).sum((1, 2))
        made = self.start.sample(numbered(P).prompts, DATA // P, Sampling(), seed, -1)
        told = [r for rollouts in made for r in rollouts]
        scores_B = self.gold(told) + NOISE * torch.randn(len(told), generator=draws)
        self.heads = fit_heads(GaussianHeads(P * V, HEADS, seed, scale=2.5), self.features(told), scores_B)

    def features(self, rollouts: list[Rollout]) -> Tensor:
        """How often each letter occurs, prompt by prompt."""
        row_B, told_BT = torch.cat([r.context for r in rollouts]), torch.stack([r.actions for r in rollouts])
        counts_BV = torch.nn.functional.one_hot(told_BT, V).sum(1).float()
        return (torch.nn.functional.one_hot(row_B, P).unsqueeze(-1) * counts_BV.unsqueeze(1)).flatten(1)

    def gold(self, rollouts: list[Rollout]) -> Tensor:
        row_B = torch.cat([r.context for r in rollouts])
        return self.features(rollouts) @ self.worth_PV.flatten() - self.mean_P[row_B]

    def expected(self, policy: TabularPolicy) -> float:
        """Gold of a policy's answers above the start's, exactly."""
        p_PTV = policy.table.detach()[:, :, 0].softmax(-1)
        return float(((p_PTV * self.worth_PV.unsqueeze(1)).sum((1, 2)) - self.mean_P).mean())


world = lru_cache(maxsize=1)(World)


class Heads:
    """A scorer: each head's mean as a component; the reward is the most confident one's, or the first's."""

    def __init__(self, w: World, nominal: str) -> None:
        self.w, self.nominal = w, nominal

    def score(self, groups: list[Group]) -> ScoreReport:
        rollouts = [r for g in groups for r in g.rollouts]
        mu_KB, sigma_KB = self.w.heads(self.w.features(rollouts))
        nominal_B = {"sure": most_confident(mu_KB, sigma_KB), "one": mu_KB[0]}[self.nominal]
        for r, nominal, mu_K in zip(rollouts, nominal_B.tolist(), mu_KB.T.tolist(), strict=True):
            r.rewards, r.reward = {f"head{k}": mu for k, mu in enumerate(mu_K)}, nominal
        return ScoreReport(len(rollouts))


def train(seed: int, lam: float, nominal: str = "sure", beta: float = 0.1) -> dict[str, float]:
    """60 steps of PPO with 8 answers to each of 24 prompts."""
    w = world(seed)
    policy, golds = w.start.clone(), []
    shapes = (robust_mix.but(lam=lam), kl_in_reward.but(coef=beta))
    method = robust_ppo().but(rollout=sample.but(n=8), minibatches=1, shaping=shapes)
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=0.1, warmup=0, max_norm=100.0)
    fit(policy, method, numbered(P), config, Heads(w, nominal), after=lambda step: golds.append(w.expected(policy)))
    return {"gold": golds[-1], "best_gold": max(golds), "lost": max(golds) - golds[-1]}


claim(
    Claim(
        id="reward-robust-rlhf",
        title="Reward-robust RLHF",
        paper="arXiv:2409.15360",
        family="reward-shaping-safety",
        says="PPO on a mix of the nominal reward and the minimum over an ensemble's heads ends higher than with one reward model "
        "and than with the minimum alone, and does not decline when trained on.",
        experiment="Words of 5 letters for 24 prompts, 5 of 12 letters rare and bad; 5 Gaussian heads fitted to noisy scores of 960 "
        "answers of the start policy, free where it wrote nothing. 60 steps of PPO with 192 answers on one head, on the minimum, and "
        "on the mix with the paper's 0.6, nominal the most confident head. gold: exact, above the start's; lost: its best less its end.",
        arms={
            "mix": partial(train, lam=0.6),
            "one head": partial(train, lam=1.0, nominal="one"),
            "minimum": partial(train, lam=0.0),
        },
        checks=(
            Check("worth more than with one reward model", "gold", "mix", "one head", margin=0.3),
            Check("less lost from its best", "lost", "mix", "one head", margin=0.0, lower=True),
            Check("worth more than the minimum alone", "gold", "mix", "minimum", margin=0.1),
        ),
        seeds=tuple(range(300, 310)),
        tried="Two records before it: 6 prompts (seeds 0-5, margins 0.5, 0.05 and 0.2: +0.74, +0.05 and +0.50, intervals too wide) and 10 "
        "prompts (seeds 10-17, margins as now), where the first check was not shown: +0.21 [-0.45, +0.84]. Whether one head overrates a "
        "prompt's rare letters is luck, so now 24 prompts share it, fewer answers each and larger steps, so that one head's decline lies "
        "within the run. On seeds 200-207: mix over one head +1.3 (sd 0.7), over the minimum +0.45 (sd 0.26). beta 0.02, 0.1, 0.3 on seeds "
        "200-203: 0.1 is best for the mix (5.53) and for one head (4.19). The most confident head alone and the mean of all heads are about "
        "as good as the mix or better (+0.10 and +0.15 on two to four of these seeds), so that the mix beats these is not checked. Heads drawn with scale 1 are "
        "all right about the rare letters and nothing differs.",
    ),
    __file__,
)
