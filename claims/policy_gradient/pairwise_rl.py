"""Pairwise-RL: a win probability against an anchor is calibrated across prompts, and asking in both orders undoes a place's charm."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.games import Game, chances
from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.protocols import Scorer
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.methods.reward_model import reward_model
from posttrain.methods.sft import sft
from posttrain.rewards.scorers.pairwise import WinRate, compare
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import Listed, fit, numbered, row
from posttrain.systems.policy_gradient.pairwise_rl import Anchors, PairJudge, lessons, pairwise_ppo

P, N, LABELS, STEPS, PLACE, ORIGIN = 8, 6, 1600, 10, 0.6, 4.0
WORDS = ("a", "b")


def ask(prompt: Prompt, a: str, b: str) -> Prompt:
    """A judge that is a table knows a question by its row."""
    return row((prompt.info["row"] * N + LETTERS.index(a)) * N + LETTERS.index(b))


def reader() -> TabularPolicy:
    """Log-odds of "the first" = what the first is worth in that place + what the second is in its own + a liking for the place."""
    first, second = torch.eye(P * N).repeat_interleave(N, 0), torch.eye(P * N).view(P, 1, N, P * N).expand(P, N, N, -1)
    features_PF = torch.cat([first, second.reshape(P * N * N, -1), torch.ones(P * N * N, 1)], 1)
    return TabularPolicy(P * N * N, 1, 2, memory=False, features_PF=features_PF)


class World:
    """Six answers to each of 8 prompts with a worth of their own; labels of pairs favour what was shown first."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.worth_PN = torch.randn(P, N, generator=rng.torch_generator("pairwise worth", seed), dtype=torch.float64)
        self.game = Game(torch.sigmoid(self.worth_PN.unsqueeze(-1) - self.worth_PN.unsqueeze(-2)))
        self.start = self.game.start(1.0, seed)
        asked = [row(i % P, i) for i in range(LABELS)]
        a, b = ([two[i].text for two in self.start.sample(asked, 2, Sampling(), seed, -1)] for i in (0, 1))
        odds_M = torch.logit(torch.tensor(self.game.judge(asked, a, b))) + PLACE
        won_M = torch.rand(LABELS, generator=rng.torch_generator("pairwise label", seed)) < torch.sigmoid(odds_M)
        shown = zip(asked, a, b, won_M.tolist(), strict=True)
        self.pairs = [(p, x, y) if w else (p, y, x) for p, x, y, w in shown if x != y]
        self.shown = [(p, x, y, w) for p, x, y, w in zip(asked, a, b, won_M.tolist(), strict=True) if x != y]

    def judge(self, both: bool = True) -> PairJudge:
        """Taught both orders of each pair, or each only as it was shown."""
        told = lessons(self.pairs, ask, WORDS)
        if not both:
            told = [row(int(ask(p, x, y).info["row"]), demonstration=WORDS[0 if w else 1]) for p, x, y, w in self.shown]
        policy = reader()
        config = Config(seed=self.seed, steps=1, prompts=len(told), lr=0.1, warmup=0)
        fit(policy, sft.but(epochs=2 if both else 4, minibatches=10), Listed(told), config)
        return PairJudge(policy, ask, WORDS)

    def model(self) -> RewardModel:
        """Bradley-Terry on the same pairs; the origin of each prompt's scores is whatever it was before, as labels never say."""
        scorer = self.start.as_reward_model()
        origin_P = ORIGIN * torch.randn(P, generator=rng.torch_generator("pairwise origin", self.seed))
        with torch.no_grad():
            assert scorer.score is not None
            scorer.score.add_(origin_P.view(P, 1, 1, 1))
        told = [row(p.info["row"], i, chosen=x, rejected=y) for i, (p, x, y) in enumerate(self.pairs)]
        config = Config(seed=self.seed, steps=1, prompts=len(told), lr=0.1, warmup=0)
        fit(scorer, reward_model.but(loss="bradley-terry(centering=0)", epochs=4, minibatches=10), Listed(told), config)
        return RewardModel(scorer)


@lru_cache(maxsize=1)
def world(seed: int) -> World:
    return World(seed)


def train(seed: int, scorer: Scorer, lr: float) -> dict[str, float]:
    """10 steps of PPO with 4 answers to each of 8 prompts; the exact share of the possible gain in worth."""
    w = world(seed)
    policy = w.start.clone()
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=lr, warmup=0, max_norm=100.0)
    fit(policy, pairwise_ppo().but(rollout=sample.but(n=4)), numbered(P), config, scorer)
    now, before, best = (
        float((p_PN * w.worth_PN).sum(-1).mean())
        for p_PN in (chances(policy), chances(w.start), torch.eye(N)[w.worth_PN.argmax(-1)].double())
    )
    return {"gain": (now - before) / (best - before)}


def error(w: World, judge: PairJudge, orders: str) -> float:
    """The mean of |P - the true P(a > b)| over all pairs."""
    every = [(row(p), LETTERS[a], LETTERS[b]) for p in range(P) for a in range(N) for b in range(N) if a != b]
    found_M = torch.tensor(compare(judge, every, orders), dtype=torch.float64)
    true_M: Tensor = torch.tensor(w.game.judge(*map(list, zip(*every, strict=True))), dtype=torch.float64)
    return float((found_M - true_M).abs().mean())


def pairwise(seed: int, orders: str = "both", both: bool = True, lr: float = 0.1) -> dict[str, float]:
    w = world(seed)
    judge = w.judge(both)
    scorer = WinRate(judge, Anchors(w.start, Sampling(), m=1, seed=seed), orders)
    return train(seed, scorer, lr) | {"error": error(w, judge, orders)}


def scalar(seed: int, lr: float = 0.1) -> dict[str, float]:
    return train(seed, world(seed).model(), lr)


claim(
    Claim(
        id="pairwise-rl",
        title="Pairwise-RL",
        paper="arXiv:2504.04950",
        family="policy-gradient",
        says="A judge trained on pairs and used on pairs, answer against anchor, gives PPO a reward that means the same for every "
        "prompt, and teaching and asking it in both orders removes its liking for a place; this beats PPO on a scalar reward model.",
        experiment="Six answers to each of 8 prompts; 1600 labels that favour what was shown first (65 in 100 between equals). A judge "
        "taught by likelihood with a liking for places it may learn; a Bradley-Terry model of the same labels, whose prompts have "
        "arbitrary origins (sd 4). 10 steps of PPO with a critic on 32 answers. gain: the share of the possible gain in true worth, exact. "
        "error: mean |P - true P(a > b)|.",
        arms={
            "Pairwise-RL": partial(pairwise, lr=0.4),
            "scalar reward model": partial(scalar, lr=0.5),
            "one order": partial(pairwise, orders="as given", both=False, lr=0.4),
        },
        checks=(
            Check("learns faster than with a scalar model", "gain", "Pairwise-RL", "scalar reward model", margin=0.02),
            Check("both orders are nearer to the truth", "error", "Pairwise-RL", "one order", margin=0.03, lower=True),
        ),
        seeds=tuple(range(10)),
        tried="Learning rates 0.2 to 0.8 on seeds 100-103: Pairwise-RL 0.75 to 0.79, the scalar model 0.61, 0.60, 0.68 at 0.2, 0.3, 0.5. After 20 steps "
        "both reach 0.82: the critic has learned the origins by then, so calibration saves steps and gains nothing in the end; with origins of "
        "sd 2 it hardly saves any. One order learns as well (0.71 at 0.3): an answer that is always shown first is always flattered alike.",
    ),
    __file__,
)
