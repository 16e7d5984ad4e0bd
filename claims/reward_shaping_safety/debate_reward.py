"""Debate reward: four pieces of evidence, chosen by opponents, are enough to make actions that a judge approves of."""

from __future__ import annotations

from functools import lru_cache, partial
from statistics import fmean

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.types import Group
from posttrain.rewards.runtime.scorer import ScoreReport
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import fit, numbered
from posttrain.systems.reward_shaping_safety.debate_reward import Debate, debated_ppo, greedy, minimax, mixed

P, A, F, LENGTH, STEPS = 12, 4, 8, 4, 30  # states, actions, features, pieces of evidence


class World:
    """States of 8 binary features: the task pays by features 0 to 3, the judge's norm goes by 2 to 5, in pairs too."""

    def __init__(self, seed: int) -> None:
        draws = rng.torch_generator("debate", seed)
        self.seed = seed
        self.states = (torch.randint(0, 2, (P, F), generator=draws) * 2 - 1).float().tolist()
        task_AF, norm_AF = torch.zeros(A, F), torch.zeros(A, F)
        task_AF[:, 0:4], norm_AF[:, 2:6] = (0.3 * torch.randn(A, 4, generator=draws) for _ in range(2))
        self.norm, self.pair = norm_AF.tolist(), (0.5 * torch.randn(A, F, F, generator=draws)).tolist()
        self.task_PA = torch.tensor(self.states) @ task_AF.T
        self.base_P = self.task_PA.argmax(-1).tolist()  # what the task alone would have one do
        self.whole_PA = self.table(lambda s, a, b: self.wins(a, b, dict(enumerate(s))))
        both = Debate(self.judge, minimax(self.judge), minimax(self.judge), LENGTH)
        self.debate_PA = self.table(both.reward)

    def judge(self, action: int, seen: dict[int, float]) -> float:
        """The norm's weights of what is shown, and of pairs of it: a piece alone may mislead."""
        pairs: float = sum(
            self.pair[action][i][j] * x * y for i, x in seen.items() for j, y in seen.items() if 2 <= i < j <= 5
        )
        alone: float = sum(self.norm[action][i] * x for i, x in seen.items())
        return alone + pairs

    def wins(self, a: int, b: int, seen: dict[int, float]) -> float:
        u = self.judge(a, seen) - self.judge(b, seen)
        return 0.5 if a == b else float(u > 0)

    def table(self, reward) -> Tensor:  # type: ignore[no-untyped-def]
        """The reward of each action in each state, against the baseline action."""
        return torch.tensor(
            [[reward(s, a, b) for a in range(A)] for s, b in zip(self.states, self.base_P, strict=True)]
        )


world = lru_cache(maxsize=1)(World)


class Table:
    """A scorer of state and action: the task's reward, and a judgement as component `aux`."""

    def __init__(self, task_PA: Tensor, aux_PA: Tensor) -> None:
        self.task_PA, self.aux_PA = task_PA, aux_PA

    def score(self, groups: list[Group]) -> ScoreReport:
        rollouts = [r for g in groups for r in g.rollouts]
        for r in rollouts:
            at = r.prompt.info["row"], int(r.actions[0])
            r.reward, r.rewards = float(self.task_PA[at]), {"aux": float(self.aux_PA[at])}
        return ScoreReport(len(rollouts))


def train(seed: int, lam: float, whole: bool = False) -> dict[str, float]:
    """30 steps of PPO, 8 actions in each of 12 states; exact figures of the policy."""
    w = world(seed)
    policy = TabularPolicy(P, 1, A, memory=False)
    method = debated_ppo().but(rollout=sample.but(n=8), shaping=(mixed(lam), kl_in_reward.but(coef=0.01)))
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=0.2, warmup=0, max_norm=100.0)
    fit(policy, method, numbered(P), config, Table(w.task_PA, w.whole_PA if whole else w.debate_PA))
    p_PA = policy.table.detach()[:, 0, 0].softmax(-1)
    low, high = w.task_PA.mean(), w.task_PA.max(-1).values.mean()
    task = float(((p_PA * w.task_PA).sum(-1).mean() - low) / (high - low))
    return {"approved": float((p_PA * w.whole_PA).sum(-1).mean()), "task": task}


@lru_cache(maxsize=2)
def robust(seed: int, own: str) -> dict[str, float]:
    """How often the side of an action that the judge, seeing all, approves of wins against the best confuser."""
    w = world(seed)
    mine = {"debate": minimax, "alone": greedy}[own](w.judge)
    game = Debate(w.judge, mine, minimax(w.judge), LENGTH)
    cases = [
        (s, a, b)
        for s, b, row in zip(w.states, w.base_P, w.whole_PA.tolist(), strict=True)
        for a in range(A)
        if row[a] == 1
    ]
    return {"defended": fmean(game.reward(*case) for case in cases)}


def arm(seed: int, lam: float, whole: bool = False, own: str = "debate") -> dict[str, float]:
    return train(seed, lam, whole) | robust(seed, own)


claim(
    Claim(
        id="debate-reward",
        title="Debate reward",
        paper="arXiv:2402.15826",
        family="reward-shaping-safety",
        says="Mixing in the outcome of a debate over few pieces of evidence makes actions that the judge prefers at hardly any loss of "
        "performance, about as well as a judge who sees everything; debaters trained against an opponent resist a confuser, an "
        "isolated one does not.",
        experiment="12 states of 8 features, 4 actions; the task goes by 4 features, the judge by 4 (2 shared, and their pairs). 30 steps of "
        "PPO on the task alone, and mixed half and half with debates of 4 pieces (both sides play minimax) or with the judge of the "
        "whole state. approved: how often the full judge prefers the action to the task's best; defended: approved actions that win "
        "against a minimax confuser, their side played by minimax or greedily.",
        arms={
            "debate": partial(arm, lam=0.5),
            "task only": partial(arm, lam=0.0, own="alone"),
            "full judge": partial(arm, lam=0.5, whole=True),
        },
        checks=(
            Check("approved of more", "approved", "debate", "task only", margin=0.05),
            Check("about as well as by the full judge", "approved", "debate", "full judge", margin=-0.05),
            Check("at little loss", "task", "debate", "task only", margin=-0.35),
            Check("debaters resist a confuser", "defended", "debate", "task only", margin=0.0),
        ),
        seeds=tuple(range(5)),
        tried="One setting, seen on seeds 100-102 with 16 states: approved 0.62 against 0.50 (where the task's best action is kept the share "
        "is 1/2), 0.64 by the full judge, at 13% of the task's reward. Debaters play the game exactly instead of being trained; with a judge "
        "that only adds up evidence greedy play is already optimal, hence the pairs. PPO stands in for offline Q-learning.",
    ),
    __file__,
)
