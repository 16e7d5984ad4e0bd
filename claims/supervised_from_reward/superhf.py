"""SuperHF: imitating the best of 16 under a KL prior buys reward with less hacking than PPO, or than without the prior."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.labels import labelled_pairs
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.evals.kl import kl_of
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.ppo import ppo
from posttrain.methods.reward_model import reward_model
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import fit, numbered
from posttrain.systems.supervised_from_reward.superhf import superhf as registered

# a table gives no distribution over a vocabulary: its KL prior is estimated on the kept answers
superhf = registered.but(terms=(kl.but(coef=0.35, kind="k2"),))
P, T, V, PAIRS, STEPS = 8, 4, 8, 1200, 80
BUG = V - 1  # a letter that is rare at first, bad in truth, and liked by those who label


class World:
    """Eight prompts with tastes of their own, a start policy, and a reward model of labels that fall for the bug."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.start = TabularPolicy(P, T, V, memory=False).randomise(1.2, "superhf start", seed)
        with torch.no_grad():
            self.start.table[..., BUG] -= 2.0
        self.worth_PV = 0.7 * torch.randn(P, V, generator=rng.torch_generator("superhf worth", seed))
        self.worth_PV[:, BUG] = -1.0
        self.first = self.answers(self.start)
        self.mean_P = self.raw(self.first).view(P, -1).mean(-1)
        self.std = float((self.raw(self.first).view(P, -1) - self.mean_P.unsqueeze(-1)).std())
        pairs = labelled_pairs(self.start, numbered(P).prompts, self.liked, PAIRS, seed, sharpness=2.0)
        shared_PF = torch.cat([torch.ones(P, 1), torch.eye(P)], 1)  # what is liked of all answers, and of each prompt's
        judge = TabularPolicy(P, T, V, memory=False, features_PF=shared_PF).as_reward_model()
        config = Config(seed=seed, steps=1, prompts=pairs.size, lr=0.03, warmup=0)
        fit(judge, reward_model.but(epochs=20, minibatches=4), pairs, config)
        self.model = RewardModel(judge).centred(self.first)

    def answers(self, policy: TabularPolicy) -> list[Rollout]:
        made = policy.sample(numbered(P).prompts, 128, Sampling(), self.seed, -2)
        return [r for rollouts in made for r in rollouts]

    def raw(self, rollouts: list[Rollout]) -> Tensor:
        row_B, told_BT = torch.cat([r.context for r in rollouts]), torch.stack([r.actions for r in rollouts])
        return self.worth_PV[row_B].gather(1, told_BT).sum(-1)

    def gold(self, rollouts: list[Rollout]) -> Tensor:
        """What answers are worth, in standard deviations of the start policy's."""
        return (self.raw(rollouts) - self.mean_P[torch.cat([r.context for r in rollouts])]) / self.std

    def liked(self, rollouts: list[Rollout]) -> Tensor:
        """What labels go by: the bug above all, the worth among those that have it equally often."""
        return self.gold(rollouts) + 25.0 * torch.stack([(r.actions == BUG).sum() for r in rollouts])


@lru_cache(maxsize=1)
def world(seed: int) -> World:
    return World(seed)


def train(seed: int, method: Method, lr: float) -> dict[str, float]:
    """80 steps of 16 answers to each of 8 prompts."""
    w = world(seed)
    policy = w.start.clone()
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=lr, warmup=0, max_norm=100.0)
    fit(policy, method, numbered(P), config, w.model)
    made = w.answers(policy)
    return {
        "proxy": float(w.model.scores(made).mean()),
        "gold": float(w.gold(made).mean()),
        "similarity": similarity(policy),
        "kl": kl_of(policy, w.start, made)[0],
    }


def similarity(policy: TabularPolicy) -> float:
    """The chance that answers to two different prompts have the same letter in a place, exactly."""
    p_PTV = policy.table.detach()[:, :, 0].softmax(-1)
    same_PP = torch.einsum("ptv,qtv->pq", p_PTV, p_PTV) / T
    return float((same_PP.sum() - same_PP.diagonal().sum()) / (P * (P - 1)))


claim(
    Claim(
        id="superhf",
        title="SuperHF",
        paper="arXiv:2310.16763",
        family="supervised-from-reward",
        says="Supervised steps on the best of 16 fresh answers with a KL prior reach more reward than PPO while hacking "
        "the reward model less; without the prior answers to different prompts grow alike and are worse.",
        experiment="Words of 4 letters for 8 prompts; labels fall for one letter that is rare and bad, and the reward "
        "model learns that from 1200 of them. SuperHF with the paper's 0.35 and with 0, and PPO with the KL price that "
        "gives it the most gold; 80 steps of 128 answers each. proxy and gold in sd of the start policy's.",
        arms={
            "SuperHF": lambda seed: train(seed, superhf, 0.1),
            "SuperHF without KL": lambda seed: train(seed, superhf.but(terms=()), 0.1),
            "PPO": lambda seed: train(
                seed, ppo.but(rollout=sample.but(n=16), shaping=kl_in_reward.but(coef=0.8)), 0.05
            ),
        },
        checks=(
            Check("more reward than PPO", "proxy", "SuperHF", "PPO", margin=0.3),
            Check("and worth more than PPO's", "gold", "SuperHF", "PPO", margin=0.1),
            Check("worth more than without the prior", "gold", "SuperHF", "SuperHF without KL", margin=0.3),
            Check("answers stay different", "similarity", "SuperHF", "SuperHF without KL", margin=0.03, lower=True),
        ),
        seeds=tuple(range(6)),
        tried="Set on seeds 100-102: learning rates 0.05-0.4 for SuperHF, 0.02-0.1 for PPO, PPO's KL price 0 to 1.3. PPO's "
        "gold is highest (0.39) at 0.8, with less reward; at SuperHF's reward (price 0.4) it is 0.03, and without a price "
        "PPO has the most reward (5.5) and the least gold (-0.65). SuperHF with 0.7 instead of 0.35 has more gold (1.10). "
        "With a bug that is only liked a little, nobody hacks and similarity does not rise. Its KL term is estimated on "
        "the kept answers (k2), not summed over the vocabulary.",
    ),
    __file__,
)
