"""Lite PPO: the group's mean with the batch's std and a mean over tokens beat GRPO's choices, most where rewards agree."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.grpo import grpo as group_std
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.types import Rollout
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.sft import sft
from posttrain.runs.in_memory import FunctionScorer, Listed, fit, row
from posttrain.select.zero_variance import zero_variance
from posttrain.systems.policy_gradient.dapo import dapo, overlong
from posttrain.systems.policy_gradient.lite_ppo import lite_ppo

P, F, T, V, STEPS = 64, 32, 9, 6, 40
END = V - 1
SFT, NOISE, LONG = 20, 0.01, 4


class World:
    """64 words of 1 to 8 letters to be spelled, and a policy, half taught by SFT, with half as many weights as prompts."""

    def __init__(self, seed: int) -> None:
        draw = rng.torch_generator("lite-ppo", seed)
        features_PF = torch.randn(P, F, generator=draw) / F**0.5
        self.length_P = torch.arange(P) % (T - 1) + 1
        self.words_PT = torch.randint(0, END, (P, T), generator=draw)
        self.words_PT[torch.arange(T) >= self.length_P.unsqueeze(-1)] = END
        self.start = TabularPolicy(P, T, V, memory=False, end=END, features_PF=features_PF)
        self.texts = [self.start.decode(word_T) for word_T in self.words_PT]
        self.asked = Listed([row(i) for i in range(P)])
        lessons = Listed([row(i, demonstration=text) for i, text in enumerate(self.texts)])
        fit(self.start, sft, lessons, Config(seed=seed, steps=SFT, prompts=P, lr=0.1, warmup=0, max_norm=100.0))

    def accuracy(self, policy: TabularPolicy) -> Tensor:
        """The exact chance of spelling each word."""
        logp_PTV = policy.logp_all(torch.arange(P), self.words_PT).detach()
        logp_PT = logp_PTV.gather(-1, self.words_PT.unsqueeze(-1)).squeeze(-1)
        return (logp_PT * (torch.arange(T) <= self.length_P.unsqueeze(-1))).sum(-1).exp()

    def score(self, rollouts: list[Rollout]) -> Tensor:
        """1 for the word, 0 for another, and a very little noise, as any grader of style adds."""
        right = [(not r.truncated) and r.text == self.texts[r.prompt.info["row"]] for r in rollouts]
        noise = [rng.python("noise", r.version, r.prompt.id, r.index).gauss(0.0, NOISE) for r in rollouts]
        return torch.tensor(right).float() + torch.tensor(noise)


@lru_cache(maxsize=1)
def world(seed: int) -> World:
    return World(seed)


DAPO = dapo.but(rollout=lite_ppo.rollout, select=(overlong, zero_variance), shaping=(), minibatches=4, rounds=1)


def train(seed: int, method: Method, lr: float = 0.1) -> dict[str, float]:
    """40 steps of 8 answers to each of 64 prompts."""
    w = world(seed)
    policy = w.start.clone()
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=lr, warmup=0, max_norm=100.0)
    fit(policy, method, w.asked, config, FunctionScorer(w.score))
    right_P = w.accuracy(policy)
    return {"accuracy": float(right_P.mean()), "long": float(right_P[w.length_P > LONG].mean())}


claim(
    Claim(
        id="lite-ppo",
        title="Lite PPO (Tricks or Traps)",
        paper="arXiv:2508.08221",
        family="policy-gradient",
        says="Of the many tricks two are enough: credit by the group's mean and the batch's std, and a mean over tokens. PPO's "
        "plain clip with these beats GRPO and DAPO; the group's std blows up what hardly differs.",
        experiment="64 words of 1 to 8 letters to be spelled by a half-taught policy of half as many weights, so that prompts "
        "interfere; the reward is 1 or 0 with noise of 0.01, which is all that differs where a group agrees. 40 steps of 512 "
        "answers; the exact accuracy. Each of the two choices is also taken back alone.",
        arms={
            "Lite PPO": partial(train, method=lite_ppo),
            "GRPO's choices": partial(train, method=lite_ppo.but(advantage=group_std, aggregate=sequence_mean)),
            "DAPO": partial(train, method=DAPO),
            "group std": partial(train, method=lite_ppo.but(advantage=group_std)),
            "sequence mean": partial(train, method=lite_ppo.but(aggregate=sequence_mean)),
        },
        checks=(
            Check("beats GRPO's two choices", "accuracy", "Lite PPO", "GRPO's choices", margin=0.02),
            Check("beats DAPO", "accuracy", "Lite PPO", "DAPO", margin=0.02),
            Check("the batch's std is better than the group's", "accuracy", "Lite PPO", "group std"),
            Check("tokens alike is better than answers alike", "accuracy", "Lite PPO", "sequence mean"),
        ),
        seeds=tuple(range(30, 44)),
        tried="An earlier record (seeds 0-7; 24 words of up to 4 letters, 16 weights, noise 0.05, learning rate 0.2) showed only that it "
        "beats DAPO: every word was locked right or wrong by step 20, so that a run counted 24 coins. Here a run averages 64 words, "
        "weights are fewer than words, noise is less (which changes nothing for a group's std), lengths differ more and the learning "
        "rate is half as large. Learning rates of 0.06, 0.1, 0.2 and 0.3 on seeds 100-102: 0.1 is best for every arm; margins "
        "from the spread on seeds 200-203 (0.07 over GRPO's choices, 0.05 over DAPO, 0.04 over the group's std, 0.02 over the sequence "
        "mean). A second record (this world, seeds 20-25) showed all but that it beats DAPO: 0.036, interval from 0.014, margin 0.02. Six "
        "seeds were too few for that; this one has 14 new ones and the same margins. Without "
        "noise GRPO's choices were better in the earlier world: the group's std is then a larger step for rare successes. That "
        "aligned models prefer the sequence mean is not checked.",
    ),
    __file__,
)
