"""ReFT: after a short warm-up on one worked answer per question, PPO on the same questions generalises better than more
imitation, be it of what people wrote or of one's own right answers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache, partial
from itertools import product

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.advantages.outcome import outcome
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.critic import CriticSettings
from posttrain.core.method import Method
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.losses.policy.reinforce import reinforce
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.sft import sft
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import FunctionScorer, Listed, fit
from posttrain.systems.policy_gradient.reft import partial_credit, reinforced
from posttrain.systems.supervised_from_reward.raft import raft

M, UM, V = 7, 7, 8  # numbers 0 to 6, added modulo 7; the eighth letter is no number
TRAIN, TERSE = 220, 0.7  # questions of 343; share of people who do not write down the step
WARM, STEPS, ASKED, G = 20, 60, 40, 8  # updates of SFT; steps, questions per step, answers per question of RL
VOTES, EARLY = 16, 10

reft = reinforced(beta=0.01).but(
    rollout=sample.but(n=G), terms=value_loss.but(coef=5.0), critic=CriticSettings(), minibatches=2
)
# 0 for a wrong answer and no baseline: what is left is the likelihood of the right ones, in as many updates as ReFT's
online = raft.but(
    name="online self-training", rollout=sample.but(n=G), select=(), advantage=outcome, loss=reinforce,
    epochs=reft.epochs, minibatches=reft.minibatches,
)  # fmt: skip


class World:
    """Sums a + b + c modulo 7. A worked answer is two letters, a + b and then the result; a terse one skips the first.

    The policy sees which a and b, and which c; knowing a + b, it can learn to add c, for every a and b at once.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        sums = list(product(range(M), repeat=3))
        rng.python("reft", seed).shuffle(sums)
        self.features_PF = torch.zeros(len(sums), M * M + M)
        for p, (a, b, c) in enumerate(sums):
            self.features_PF[p, [M * a + b, M * M + c]] = 1.0
        prompts = [self.question(p, *abc) for p, abc in enumerate(sums)]
        self.train, self.test = Listed(prompts[:TRAIN]), prompts[TRAIN:]
        self.warm = self.imitated(WARM)

    def question(self, p: int, a: int, b: int, c: int) -> Prompt:
        terse, result = rng.python("reft chain", self.seed, p).random() < TERSE, (a + b + c) % M
        chain = LETTERS[UM if terse else (a + b) % M] + LETTERS[result]
        return Prompt.text(f"{p}", f"{a}+{b}+{c}", str(result), row=p, demonstration=chain)

    def cold(self) -> TabularPolicy:
        return TabularPolicy(len(self.features_PF), 2, V, features_PF=self.features_PF)

    def imitated(self, updates: int, shown: Listed | None = None) -> TabularPolicy:
        """A policy after so many updates on 220 worked answers each."""
        policy = self.cold()
        fit(policy, sft, shown or self.train, self.settings(updates, 0.1, TRAIN))
        return policy

    def settings(self, steps: int, lr: float, prompts: int) -> Config:
        return Config(seed=self.seed, steps=steps, prompts=prompts, lr=lr, warmup=0, max_norm=100.0)

    def measured(self, policy: TabularPolicy) -> dict[str, float]:
        """On questions never asked in training: the likeliest answer, the mean of 16 and the vote of 16."""
        greedy = policy.sample(self.test, 1, Sampling(temperature=0.0), self.seed, -1)
        drawn = policy.sample(self.test, VOTES, Sampling(), self.seed, -1)
        said = [[number_of(r) for r in made] for made in drawn]
        votes = [max(sorted(set(xs)), key=xs.count) == p.answer for xs, p in zip(said, self.test, strict=True)]
        n = len(self.test)
        return {
            "accuracy": sum(scores([made[0] for made in greedy])) / n,
            "sampled": sum(sum(scores(made)) for made in drawn) / (n * VOTES),
            "majority": sum(votes) / n,
        }


def told(r: Rollout) -> str:
    """An answer in words: `3 #### 5`, or `um #### 5`."""
    first, last = (str(i) if i < M else "um" for i in r.actions.tolist())
    return f"{first} #### {last}"


def number_of(r: Rollout) -> str:
    return told(r).rpartition(" ")[2]


@cache
def score(credit: float, answer: str, text: str) -> float:
    """The partial-credit rule (without credit: right or wrong); kept, since few answers are possible."""
    return float(partial_credit(Prompt.text("", "", answer), text, credit=credit))


def scores(rollouts: list[Rollout], credit: float = 0.0) -> list[float]:
    return [score(credit, r.prompt.answer, told(r)) for r in rollouts]


world = lru_cache(maxsize=1)(World)


def by_sft(seed: int) -> dict[str, float]:
    """Imitation for 20 or 80 updates, whichever is better on the test questions: more than it could know."""
    w = world(seed)
    return max((w.measured(p) for p in (w.warm, w.imitated(80))), key=lambda m: m["accuracy"])


def by_offline(seed: int) -> dict[str, float]:
    """One round: as many answers as the others draw; all right ones and the worked ones, imitated for 160 updates."""
    w = world(seed)
    made = w.warm.sample(w.train.prompts, STEPS * ASKED * G // TRAIN, Sampling(), seed, -3)
    own = [r for rs in made for r in rs if scores([r]) == [1.0]]
    texts = [replace(r.prompt, info=r.prompt.info | {"demonstration": r.text}) for r in own]
    return w.measured(w.imitated(160, Listed([*w.train.prompts, *texts])))


def by_reward(
    seed: int, method: Method, lr: float, credit: float = 0.1, warm: bool = True, steps: int = STEPS
) -> dict[str, float]:
    """Steps of 8 answers to 40 training questions; early: share of answers that are a number in the first 10 steps."""
    w = world(seed)
    policy, numbers = w.warm.clone() if warm else w.cold(), list[bool]()

    def watched(rollouts: list[Rollout]) -> Tensor:
        numbers.extend(number_of(r) != "um" for r in rollouts)
        return torch.tensor(scores(rollouts, credit))

    fit(policy, method, w.train, w.settings(steps, lr, ASKED), FunctionScorer(watched))
    early = numbers[: EARLY * ASKED * G]
    return w.measured(policy) | {"early": sum(early) / len(early)}


claim(
    Claim(
        id="reft",
        title="ReFT",
        paper="arXiv:2401.08967",
        family="policy-gradient",
        says="PPO from a warm start on the training questions of SFT, rewarded by the checked answer, generalises better than "
        "SFT and than self-training on own right answers, offline or online; it needs the warm-up.",
        experiment="Sums of three numbers modulo 7, 220 questions with one worked answer each (70% skip the step), 123 others to "
        "test. Offline and online self-training and ReFT draw the same number of answers. Accuracy of the likeliest answer.",
        arms={
            "SFT": by_sft,
            "offline self-training": by_offline,
            "online self-training": partial(by_reward, method=online, lr=0.1, credit=0.0),
            "ReFT": partial(by_reward, method=reft, lr=0.2),
            "ReFT without warm-up": partial(by_reward, method=reft, lr=0.2, warm=False),
            "no warm-up, no credit, 10 steps": partial(
                by_reward, method=reft, lr=0.2, credit=0.0, warm=False, steps=EARLY
            ),
        },
        checks=(
            Check("better than SFT", "accuracy", "ReFT", "SFT", margin=0.08),
            Check("better than offline self-training", "accuracy", "ReFT", "offline self-training", margin=0.05),
            Check("better than online self-training", "accuracy", "ReFT", "online self-training", margin=0.02),
            Check("also by majority vote", "majority", "ReFT", "online self-training"),
            Check("the warm-up is needed", "accuracy", "ReFT", "ReFT without warm-up", margin=0.1),
            Check("partial credit: numbers sooner", "early", "ReFT without warm-up", "no warm-up, no credit, 10 steps"),
        ),
        seeds=tuple(range(5)),
        tried="Set on seeds 100-103, learning rates 0.05 to 0.2 for both online arms. How far ReFT is ahead of online "
        "self-training depends on how much is left to find: 0.03 with 50% terse answers, 0.1 with 70%; 0.02 with two more "
        "letters that mean nothing (not tuned again). beta is 0.01, the paper's for programs; with its other, 0.05, one seed "
        "was 0.06 lower. At a learning rate of 0.05 ReFT's sampled answers are hardly better than online self-training's "
        "(0.53, 0.52), only its likeliest ones. Imitating for 160 updates instead of 80 gave SFT 0.01 on one seed. After the "
        "warm-up nearly every answer is a number, so partial credit is tested without it, and there it does little.",
    ),
    __file__,
)
