"""Two roles learn from the same episodes: a proposer poses questions, a solver answers them, each with its own network.

    python -m examples.two_roles

The solver is paid for right answers, the proposer for questions that the solver gets wrong, so it keeps asking what is not yet
known. What you should see: the solver answers 26% right at the start and about 96% after 60 steps; the run beside it, whose
proposer does not learn, gets 99%: with 12 questions, asking all of them alike is as good.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import posttrain as pt
from posttrain.core.acting import Actor
from posttrain.methods.grpo import grpo
from posttrain.policies.gaussian import mlp, padded, see
from posttrain.runs.in_memory import loop_of
from posttrain.train import train

QUESTIONS, ANSWERS = 12, 4


class Chooser(Actor, nn.Module):
    """One choice out of K from a state vector: pi = softmax(network(state)), drawn by identity."""

    def __init__(self, states: int, choices: int, seed: int) -> None:
        super().__init__()
        self.net = mlp(states, 32, choices, seed=seed, last=0.3)
        self.critic = None

    def observe(self, prompt: pt.Prompt) -> pt.Observation:
        return see(torch.ones(1))  # the proposer sees nothing: it only knows what it has learned

    @torch.no_grad()
    def act(
        self, pending: Sequence[Sequence[pt.Turn]], keys: Sequence[Sequence[int]], how: pt.Sampling, version: int = 0
    ) -> list[list[pt.Turn]]:
        last = [turns[-1] for turns, some in zip(pending, keys, strict=True) for _ in some]
        logits_BK = self.net(torch.cat([t.observation.streams["state"] for t in last])) / self.temperature
        u_B = pt.rng.uniform(torch.tensor([k for some in keys for k in some]), 0)
        choice_B = pt.rng.pick(logits_BK, u_B) if how.temperature else logits_BK.argmax(-1)
        logp_B = logits_BK.log_softmax(-1).gather(-1, choice_B.unsqueeze(-1)).squeeze(-1)
        made = iter([
            pt.Turn.of(t.observation, c.view(1), x.view(1), str(int(c)), version)
            for t, c, x in zip(last, choice_B, logp_B, strict=True)
        ])  # fmt: skip
        return [[next(made) for _ in some] for some in keys]

    def forward(self, rows: Sequence[Any], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        turns = [r.row for r in rows]
        logp_NK = (self.net(torch.cat([t.observation.streams["state"] for t in turns])) / self.temperature).log_softmax(
            -1
        )
        choice_N = torch.cat([t.actions for t in turns])
        return {"logp_BT": padded(logp_NK.gather(-1, choice_N.unsqueeze(-1)).squeeze(-1), [len(t) for t in turns])}

    def clone(self) -> Chooser:
        return copy.deepcopy(self)


class School(pt.Environment):
    """Every episode: the proposer picks a question, the solver picks an answer."""

    name = "school"

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt.text(f"lesson-{split}-{index}", "")

    def first_role(self, prompt: pt.Prompt) -> str:
        return "proposer"

    def open(self, prompt: pt.Prompt, key: int) -> Lesson:
        return Lesson()


class Lesson(pt.Episode):
    """One question and its answer."""

    question = -1

    def step(self, turn: pt.Turn) -> pt.Step:
        if self.question < 0:
            self.question = int(turn.actions[0])
            return pt.Step(see(torch.eye(QUESTIONS)[self.question]), reward=0.0, role="policy")
        right = float(int(turn.actions[0]) == (7 * self.question + 3) % ANSWERS)
        return pt.Step(None, reward=right, rewards={"proposer": 1.0 - right})


def known(solver: Chooser) -> float:
    """The chance of a right answer, averaged over all questions."""
    p_QK = solver.net(torch.eye(QUESTIONS)).softmax(-1)
    return float(sum(p_QK.detach()[q, (7 * q + 3) % ANSWERS] for q in range(QUESTIONS)) / QUESTIONS)


def objective(role: str) -> pt.Objective:
    return pt.Objective(role, grpo.loss, grpo.aggregate, grpo.optimiser, grpo.reference, rows=role)


def main(seed: int = 0, small: bool = False, proposer_learns: bool = True) -> dict[str, float]:
    """Train both; returns what the solver knows before and after."""
    policies = {"policy": Chooser(QUESTIONS, ANSWERS, seed), "proposer": Chooser(1, QUESTIONS, seed + 100)}
    method = grpo.but(
        terms=(), rollout=grpo.rollout.but(n=16), others=(objective("proposer"),) if proposer_learns else ()
    )
    config = pt.Config(steps=40 if small else 60, prompts=4, lr=1e-2, warmup=0, seed=seed)
    before = known(policies["policy"])
    train(loop_of(policies, method, School(), config))
    return {"before": before, "after": known(policies["policy"])}


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        print(seed, main(seed), "proposer fixed:", main(seed, proposer_learns=False))
