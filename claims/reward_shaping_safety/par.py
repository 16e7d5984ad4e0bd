"""PAR: the preference over a reference answer as reward stops paying where hacking begins."""

from __future__ import annotations

from functools import lru_cache, partial

import torch

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.exploit import Exploit
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import FunctionScorer, fit, numbered
from posttrain.systems.reward_shaping_safety.par import Referenced, shaped

STEPS = 40


@lru_cache(maxsize=1)
def world(seed: int) -> Exploit:
    return Exploit(seed, shift=4.0)


def train(seed: int, method: Method, scorer: FunctionScorer | Referenced) -> dict[str, float]:
    """40 steps of PPO, 16 answers to each of 8 prompts; gold is exact."""
    w = world(seed)
    policy, golds = w.start.clone(), []
    config = Config(seed=seed, steps=STEPS, prompts=w.P, lr=0.05, warmup=0, max_norm=100.0)
    method = method.but(rollout=sample.but(n=16))
    fit(policy, method, numbered(w.P), config, scorer, after=lambda step: golds.append(w.expected(policy)[0]))
    return {"gold": golds[-1], "best_gold": max(golds), "exploited": w.expected(policy)[1]}


def raw(seed: int, beta: float = 2.0) -> dict[str, float]:
    return train(seed, ppo.but(shaping=kl_in_reward.but(coef=beta)), FunctionScorer(world(seed).proxy))


def uncentred(seed: int, beta: float = 0.01) -> dict[str, float]:
    """As bounded as PAR, but not a function of the centred reward."""

    def squashed(rollouts: list[Rollout]) -> torch.Tensor:
        return torch.sigmoid(world(seed).proxy(rollouts))

    return train(seed, ppo.but(shaping=kl_in_reward.but(coef=beta)), FunctionScorer(squashed))


def centred(seed: int, m: int, beta: float = 0.005) -> dict[str, float]:
    w = world(seed)
    return train(seed, shaped(beta=beta), Referenced(FunctionScorer(w.proxy), w.start, Sampling(), m, seed))


claim(
    Claim(
        id="par",
        title="PAR",
        paper="arXiv:2502.18770",
        family="reward-shaping-safety",
        says="sigmoid(r - r_ref), the preference over a reference answer, as the reward of PPO is hacked less than the raw "
        "reward and than the same squashing without centring; one reference answer is enough.",
        experiment="Words of 4 letters for 8 prompts; a proxy overrates one letter that is rare and bad, and has an arbitrary "
        "origin for each prompt. 40 steps of PPO with 128 answers: the raw reward, sigmoid(r), PAR with 1 and 5 references, each "
        "with the KL price that gives it the most gold. gold: exact, in sd of the start policy's answers.",
        arms={
            "PAR": partial(centred, m=1),
            "PAR, 5 references": partial(centred, m=5),
            "raw": raw,
            "sigmoid, not centred": uncentred,
        },
        checks=(
            Check("worth more than with the raw reward", "gold", "PAR", "raw", margin=0.5),
            Check("centring matters", "gold", "PAR", "sigmoid, not centred", margin=0.4),
            Check("one reference is enough", "gold", "PAR", "PAR, 5 references", margin=-0.4),
        ),
        seeds=tuple(range(5)),
        tried="KL prices on seeds 100-102: raw 0.1 to 4 (2 ends best, 0.26 after 60 steps; at 0.1 it ends at -1), sigmoid 0.01 to "
        "0.1, PAR 0.005 to 0.1. PAR is hacked too if trained on (after 60 steps it keeps 58% of its best gold, not 90%): saturated "
        "is not flat. The other shapings of the paper (WARM, ODIN, LSC, min-max) are not compared.",
    ),
    __file__,
)
