"""A generative judge of pairs (Pairwise-RL, arXiv:2504.04950): it reads a question with two answers and names one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from posttrain.core.protocols import Policy
from posttrain.core.types import Prompt

Ask = Callable[[Prompt, str, str], Prompt]
WORDS = ("A", "B")  # what it says when the first, or the second, is better


def ask(prompt: Prompt, a: str, b: str) -> Prompt:
    """The question to the judge; its id is that of all it reads."""
    said = [f"{m['role']}: {m['content']}" for m in prompt.content]
    asked = prompt.last if len(said) == 1 else "\n\n".join(said)
    text = f"{asked}\n\nA: {a}\n\nB: {b}\n\nWhich is better, A or B?"
    return Prompt.text(f"{prompt.id}|{a}|{b}", text)


def lessons(pairs: Iterable[tuple[Prompt, str, str]], ask: Ask = ask, words: tuple[str, str] = WORDS) -> list[Prompt]:
    """(prompt, better, worse) as demonstrations, each in both orders: no place is right more often than the other."""
    asked = [(ask(p, a, b), first) for p, x, y in pairs for a, b, first in ((x, y, True), (y, x, False))]
    return [replace(q, info=q.info | {"demonstration": words[0] if first else words[1]}) for q, first in asked]


class PairJudge:
    """A policy that learned `lessons` by likelihood alone (SFT), as a judge for rewards/scorers/pairwise.py.

    P(a wins) = pi(A | x, a, b) / (pi(A | x, a, b) + pi(B | x, a, b)); ask in both orders, since it may like a place.
    """

    def __init__(self, policy: Policy, ask: Ask = ask, words: tuple[str, str] = WORDS) -> None:
        self.policy, self.ask, self.words = policy, ask, words

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str]) -> list[float]:
        asked = [self.ask(*match) for match in zip(prompts, a, b, strict=True)]
        if not asked:
            return []
        was = self.policy.training
        self.policy.eval()
        said = [self.policy.written(q, word) for word in self.words for q in asked]
        logp_B = self.policy.forward(said, ("logp_BT",))["logp_BT"].sum(-1).tolist()
        self.policy.train(was)
        gaps = [x - y for x, y in zip(logp_B[: len(asked)], logp_B[len(asked) :], strict=True)]
        return [1 / (1 + math.exp(-max(min(g, 50.0), -50.0))) for g in gaps]
