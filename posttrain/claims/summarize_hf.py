"""Learning to summarize: a reward model of people's comparisons is a better aim than imitation or overlap."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.evals.win_rate import win_rate
from posttrain.lab.claim import Check, Claim, claim
from posttrain.lab.fit import Listed, Worth, fit, row
from posttrain.lab.labels import labelled_pairs
from posttrain.lab.tabular import TabularPolicy
from posttrain.methods.ppo import ppo
from posttrain.methods.reward_model import reward_model
from posttrain.methods.sft import sft
from posttrain.rewards.models.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

FACTS, SAID, THEMES = 10, 3, 10  # a post has 10 facts, a summary tells 3; 10 numbers say what a post is about
TRAIN, TEST, PAIRS = 256, 64, 800
LEAD = 0.5  # how much less each later fact of a post tempts those who write references
ANSWERS = 16  # a test post
BETA, STEPS = 0.3, 100


class Posts:
    """Posts, references that people wrote, and what people value: important facts, each once, that follow well."""

    def __init__(self, seed: int) -> None:
        draws = rng.torch_generator("summarize", seed)
        themes_PF = torch.randn(TRAIN + TEST, THEMES, generator=draws)
        self.importance_PV = themes_PF @ torch.randn(THEMES, FACTS, generator=draws) / THEMES**0.5
        self.flow_VV = 0.5 * torch.randn(FACTS, FACTS, generator=draws)
        self.features_PF = torch.cat([torch.ones(TRAIN + TEST, 1), themes_PF], 1)
        posts = [row(p) for p in range(TRAIN + TEST)]
        self.references = [r[0] for r in self.writer().sample(posts, 1, Sampling(), seed, -1)]
        self.posts = [
            replace(p, info=p.info | {"demonstration": r.text}) for p, r in zip(posts, self.references, strict=True)
        ]

    def writer(self) -> TabularPolicy:
        """Feels what matters and what flows, but likes the first facts of a post too much."""
        liked_PV = self.importance_PV - LEAD * torch.arange(FACTS)
        who = TabularPolicy(TRAIN + TEST, SAID, FACTS)
        with torch.no_grad():
            who.table.copy_(liked_PV[:, None, None].expand_as(who.table))
            who.table[:, 1:, :FACTS] += self.flow_VV
        return who

    def blank(self) -> TabularPolicy:
        """A summariser that knows nothing yet."""
        return TabularPolicy(TRAIN + TEST, SAID, FACTS, features_PF=self.features_PF)

    def worth(self, rollouts: list[Rollout]) -> Tensor:
        """Importance of the different facts told, and flow from each to the next."""
        told_BT, row_B = torch.stack([r.actions for r in rollouts]), torch.cat([r.context for r in rollouts])
        once_BV = torch.zeros(len(rollouts), FACTS).scatter_(1, told_BT, 1.0)
        return (once_BV * self.importance_PV[row_B]).sum(-1) + self.flow_VV[told_BT[:, :-1], told_BT[:, 1:]].sum(-1)

    def overlap(self, rollouts: list[Rollout]) -> Tensor:
        """ROUGE's part: the share of the reference's facts that a summary repeats."""
        ref_BT = torch.stack([self.references[int(r.context)].actions for r in rollouts])
        told_BT = torch.stack([r.actions for r in rollouts])
        return (ref_BT.unsqueeze(-1) == told_BT.unsqueeze(-2)).any(-1).float().mean(-1)

    def train(self) -> Listed:
        return Listed(self.posts[:TRAIN])


@cache
def prepared(seed: int) -> tuple[Posts, TabularPolicy, RewardModel]:
    """The posts, the supervised policy, and the reward model of 800 comparisons of its summaries, references at 0."""
    world = Posts(seed)
    policy = world.blank()
    fit(policy, sft, world.train(), settings(seed, 60, prompts=64))
    pairs = labelled_pairs(policy, world.posts[:TRAIN], world.worth, PAIRS, seed)
    judge = world.blank().as_reward_model()
    fit(judge, reward_model, pairs, settings(seed, 40, prompts=100, lr=0.03))
    return world, policy, RewardModel(judge).centred(world.references[:TRAIN])


def settings(seed: int, steps: int, prompts: int = 32, lr: float = 0.05) -> Config:
    return Config(seed=seed, steps=steps, prompts=prompts, lr=lr, warmup=0, max_norm=100.0)


def measured(seed: int, policy: TabularPolicy) -> dict[str, float]:
    """On held-out posts: how often people prefer it to the reference, and what the reward model says."""
    world, _, model = prepared(seed)
    made = [r for rollouts in policy.sample(world.posts[TRAIN:], ANSWERS, Sampling(), seed, -2) for r in rollouts]
    theirs = world.worth(world.references[TRAIN:]).repeat_interleave(ANSWERS)
    rate = win_rate(world.worth(made).tolist(), theirs.tolist())
    overlap = float(world.overlap(made).mean())
    return {"win_rate": rate, "proxy": float(model.scores(made).mean()), "overlap": overlap}


def reinforced(seed: int, beta: float, rouge: bool = False) -> dict[str, float]:
    world, start, model = prepared(seed)
    policy = start.clone()
    method = ppo.but(rollout=sample.but(n=2), minibatches=1, shaping=kl_in_reward.but(coef=beta))
    scorer: Any = Worth(world.overlap) if rouge else model
    fit(policy, method, world.train(), settings(seed, STEPS), scorer)
    return measured(seed, policy)


claim(
    Claim(
        id="summarize-hf",
        title="Learning to summarize from human feedback",
        paper="arXiv:2009.01325",
        family="policy-gradient",
        says="SFT, a reward model of comparisons, then PPO with a KL price: people prefer the result to the references "
        "and to a much larger supervised model; optimising ROUGE is worse; without the price the reward model's score "
        "rises on while preference falls.",
        experiment="Summaries of 3 out of 10 facts, references by writers who favour the lead, 800 noisy comparisons. "
        "A policy by SFT, by PPO on the reward model (beta 0.3 and 0), by PPO on overlap with the reference; and the "
        "writers themselves, the limit of any larger SFT. Held-out posts; people's true taste decides who wins.",
        arms={
            "supervised": lambda seed: measured(seed, prepared(seed)[1]),
            "perfect imitation": lambda seed: measured(seed, prepared(seed)[0].writer()),
            "PPO on the reward model": lambda seed: reinforced(seed, BETA),
            "PPO without KL": lambda seed: reinforced(seed, 0.0),
            "PPO on overlap": lambda seed: reinforced(seed, 0.0, rouge=True),
        },
        checks=(
            Check("beats the references", "win_rate", "PPO on the reward model", 0.5, margin=0.05),
            Check("beats any SFT", "win_rate", "PPO on the reward model", "perfect imitation", margin=0.1),
            Check("beats optimised ROUGE", "win_rate", "PPO on the reward model", "PPO on overlap", margin=0.05),
            Check("overlap did rise", "overlap", "PPO on overlap", "PPO on the reward model", margin=0.05),
            Check("no KL: score up", "proxy", "PPO without KL", "PPO on the reward model", margin=0.05),
            Check("no KL: preference down", "win_rate", "PPO on the reward model", "PPO without KL", margin=0.02),
        ),
        seeds=tuple(range(30, 42)),
        tried="Fourth design; margins stayed. Three before it showed all but the last check: a policy without memory of the "
        "last fact (500 comparisons, seeds 0 to 5: +0.041 [+0.002, +0.080] against 0.02), with it (400, seeds 10 to 17: "
        "+0.053 [+0.014, +0.101]; 300, seeds 20 to 27: +0.040 [-0.016, +0.094]). Worlds of 4 themes differ too much for 8 "
        "seeds, so now 10 themes and 12 seeds, chosen on seeds 100 to 161 and recorded on unseen ones. Tuned there: beta 0 "
        "to 1 for the reward model, 0 to 0.3 for overlap (0 is best); 200 to 2,000 comparisons. The critic starts at 0.",
    ),
    __file__,
)
