"""PURE: summed, the rewards of filler steps outbid the solution; in min form they are worth nothing."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.rloo import rloo
from posttrain.core.config import Config
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Rollout
from posttrain.rewards.runtime.scorer import ScoreReport
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import fit, numbered, row
from posttrain.systems.policy_gradient.pure import min_form, min_form_rl

P, T, STEPS, N = 4, 8, 25, 16
GOOD, FILLER, BAD, END = range(4)
NEEDED = 3


def solved(r: Rollout) -> bool:
    """Three good steps, no bad one, and an answer given in time."""
    letters = r.actions.tolist()
    return (not r.truncated) and letters.count(GOOD) >= NEEDED and BAD not in letters


def judged(r: Rollout, filler: float) -> Tensor:
    """A process reward model with a flaw: filler is rated above real work. It does see a wrong or missing answer."""
    worth = torch.tensor([0.4, filler, -0.8, 0.0])[r.actions]
    worth[-1] = 0.4 if solved(r) else -0.8
    return worth


class Chain:
    """A scorer: step rewards in reward_T, or the outcome alone."""

    def __init__(self, filler: float, outcome: bool) -> None:
        self.filler, self.outcome = filler, outcome

    def score(self, groups: list[Group]) -> ScoreReport:
        rollouts = [r for g in groups for r in g.rollouts]
        for r in rollouts:
            r.reward = float(solved(r)) if self.outcome else 0.0
            r.set_stream("reward", None if self.outcome else judged(r, self.filler))
        return ScoreReport(len(rollouts))


def train(
    seed: int, shaping: tuple[Part, ...], outcome: bool = False, filler: float = 0.9, lr: float = 0.6
) -> dict[str, float]:
    """25 steps of 16 answers to each of 4 prompts, from a policy that mostly fills."""
    policy = TabularPolicy(P, T, 4, end=END).randomise(0.3, "pure start", seed)
    with torch.no_grad():
        policy.table.add_(torch.tensor([0.0, 0.7, -0.7, -0.7]))
    method = min_form_rl().but(shaping=shaping, rollout=sample.but(n=N))
    if outcome:
        method = method.but(advantage=rloo)
    config = Config(seed=seed, steps=STEPS, prompts=P, lr=lr, warmup=0, max_norm=100.0)
    fit(policy, method, numbered(P), config, Chain(filler, outcome))
    asked = [row(i) for i in range(P)]
    made = [r for g in policy.sample(asked, 256, Sampling(), seed, -1) for r in g]
    letters = torch.cat([r.actions for r in made])
    return {
        "success": sum(map(solved, made)) / len(made), "length": len(letters) / len(made),
        "filler": float((letters == FILLER).float().mean()),
    }  # fmt: skip


claim(
    Claim(
        id="pure",
        title="PURE",
        paper="arXiv:2504.15275",
        family="policy-gradient",
        says="Summed process rewards teach a policy to pile up steps that score well and solve nothing; with the value of a "
        "chain defined as its worst step (a softmin transform of the rewards) the same process rewards teach it to solve.",
        experiment="Chains of up to 8 steps: good (+0.4), filler (+0.9, the flaw), bad (-0.8); the last step earns +0.4 if the "
        "problem is solved (3 good steps, none bad, ended in time), else -0.8. 25 steps of 64 answers from the same start.",
        arms={
            "min": partial(train, shaping=(min_form,)),
            "sum": partial(train, shaping=()),
            "outcome only": partial(train, shaping=(), outcome=True),
            "sum, honest filler": partial(train, shaping=(), filler=-0.1),
        },
        checks=(
            Check("min solves where sum fills", "success", "min", "sum", margin=0.5),
            Check("sum piles up filler", "filler", "sum", "min", margin=0.25),
            Check("the flaw is what breaks it", "success", "sum, honest filler", "sum", margin=0.5),
            Check("nearly as good as checked answers", "success", "min", "outcome only", margin=-0.1),
        ),
        seeds=tuple(range(5)),
        tried="Set on seeds 100-101: learning rates 0.03-0.3 summed (none solves more than 0.02), 0.1-0.6 in min form (0.6 is best "
        "and used for all), temperatures 0.1 and 0.3 (alike). With filler rated below good steps (0.5 and 0.6) the sum solves "
        "too: the flaw must be large enough to pay. That min form needs fewer steps than checked answers does not show: those "
        "learn faster at rate 0.3 (0.99 against 0.85), as every answer is checked here.",
    ),
    __file__,
)
