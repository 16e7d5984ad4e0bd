"""Fine-grained RLHF: the same total reward teaches faster when each segment is paid as it ends."""

from __future__ import annotations

from functools import lru_cache, partial

import torch

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.credit import Span
from posttrain.core.types import Prompt, Rollout
from posttrain.rewards.runtime.scorer import Verdict
from posttrain.rewards.scorers.fine_grained import FineGrained, SegmentModel
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import fit, numbered
from posttrain.systems.reward_shaping_safety.fine_grained_rlhf import dense_ppo

P, T, V, STEPS, TOXIC = 4, 24, 8, 25, (6, 7)  # answers of 12 segments of 2 letters; two letters are toxic anywhere


class World:
    """Each prompt has letters that are beside the point; a segment is +1 or -1 by each of two reward models."""

    def __init__(self, seed: int) -> None:
        self.start = TabularPolicy(P, T, V, memory=False).randomise(0.3, "fine start", seed)
        draws = rng.torch_generator("fine", seed)
        self.beside = [set(torch.randperm(V - 2, generator=draws)[:3].tolist()) for _ in range(P)]

    def toxic(self, prompt: Prompt, text: str, span: Span) -> float:
        return -1.0 if any(LETTERS.index(c) in TOXIC for c in text[slice(*span)]) else 1.0

    def relevant(self, prompt: Prompt, text: str, span: Span) -> float:
        return -1.0 if any(LETTERS.index(c) in self.beside[prompt.info["row"]] for c in text[slice(*span)]) else 1.0

    def models(self) -> list[SegmentModel]:
        return [
            SegmentModel("toxic", segments, self.toxic, 0.5),
            SegmentModel("relevant", segments, self.relevant, 0.5),
        ]

    def errors(self, policy: TabularPolicy) -> float:
        """The share of segments with an error of either kind, exactly."""
        p_PTV = policy.table.detach()[:, :, 0].softmax(-1)
        fine_P = [[v for v in range(V) if v not in TOXIC and v not in self.beside[p]] for p in range(P)]
        fine_PT = torch.stack([p_PTV[p][:, fine_P[p]].sum(-1) for p in range(P)])
        return 1 - float((fine_PT[:, 0::2] * fine_PT[:, 1::2]).mean())


def segments(text: str) -> list[Span]:
    return [(i, i + 2) for i in range(0, len(text), 2)]


class Placed(FineGrained):
    """The same rewards, placed where they belong, all at the end, or each a segment late."""

    def __init__(self, models: list[SegmentModel], decode, where: str) -> None:  # type: ignore[no-untyped-def]
        super().__init__(models, decode)
        self.where = where

    def one(self, r: Rollout) -> Verdict:
        said = super().one(r)
        assert said.reward_T is not None
        if self.where == "end":
            return Verdict(float(said.reward_T.sum()), said.parts)
        return Verdict(said.reward, said.parts, said.reward_T.roll(2)) if self.where == "late" else said


world = lru_cache(maxsize=1)(World)


def train(seed: int, where: str, lr: float = 0.2) -> dict[str, float]:
    """25 steps of PPO with 64 answers each."""
    w = world(seed)
    policy, errors = w.start.clone(), []
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=lr, warmup=0, max_norm=100.0)
    method = dense_ppo(beta=0.005).but(rollout=sample.but(n=16))
    scorer = Placed(w.models(), policy.decode, where)
    fit(policy, method, numbered(P), config, scorer, after=lambda step: errors.append(w.errors(policy)))
    reached = next((i + 1 for i, e in enumerate(errors) if e < 0.3), STEPS + 1)
    return {"error": errors[-1], "steps_to_30%": float(reached)}


claim(
    Claim(
        id="fine-grained-rlhf",
        title="Fine-grained RLHF",
        paper="arXiv:2306.01693",
        family="reward-shaping-safety",
        says="Rewards from several models, given at the end of each segment they judge, teach PPO faster and to fewer errors than "
        "the same rewards summed at the end of the answer.",
        experiment="Answers of 12 segments; one model marks toxic segments, one irrelevant ones, +0.5 or -0.5 each. 25 steps of PPO "
        "with 64 answers and the same total reward: on the token that ends the segment, all at the end, or a segment late. "
        "error: share of segments with an error, exact; steps_to_30%: until it is below 0.3.",
        arms={
            "segments": partial(train, where="segment"),
            "at the end": partial(train, where="end"),
            "a segment late": partial(train, where="late"),
        },
        checks=(
            Check("fewer samples to 30% errors", "steps_to_30%", "segments", "at the end", margin=3.0, lower=True),
            Check("fewer errors at the end", "error", "segments", "at the end", margin=0.03, lower=True),
            Check("the token matters", "error", "segments", "a segment late", margin=0.03, lower=True),
        ),
        seeds=tuple(range(6)),
        tried="Learning rates 0.06, 0.12 and 0.2 on seeds 100-102; 0.2 is best for every arm. With 6 segments the dense reward "
        "needs 1.4 times fewer steps, with 12 about 1.7 times. That weights of the models set the behaviour (length) is not tested: "
        "answers have one length here.",
    ),
    __file__,
)
