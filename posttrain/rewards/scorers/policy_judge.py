"""A policy as the judge: one that was taught to compare, the very one that is trained, or a model in a folder.

Who of two is better is the probability of the word that names it, so nothing is sampled; points, and several answers together, are
asked for in words, written by the policy and read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from posttrain.core import rng
from posttrain.core.protocols import Policy
from posttrain.core.registry import scorer
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.rewards.runtime.scorer import NAN
from posttrain.rewards.runtime.timeout_pool import Failure
from posttrain.rewards.scorers.judging import RUBRIC, Criterion
from posttrain.rewards.scorers.word_judge import WordJudge

Ask = Callable[[Prompt, str, str], Prompt]
WORDS = ("A", "B")  # what it says when the first, or the second, is better
AT_ONCE = 64  # questions of a forward pass
SPOKEN = Sampling(temperature=0.0, max_tokens=256)  # how it writes points and rankings


def ask(prompt: Prompt, a: str, b: str) -> Prompt:
    """The question to the judge; its id is that of all it reads."""
    said = [f"{m['role']}: {m['content']}" for m in prompt.content]
    asked = prompt.last if len(said) == 1 else "\n\n".join(said)
    text = f"{asked}\n\nA: {a}\n\nB: {b}\n\nWhich is better, A or B?"
    return Prompt.text(f"{prompt.id}|{a}|{b}", text)


def asked_by(rubric: str) -> Ask:
    """The question with what the better one is better by."""

    def put(prompt: Prompt, a: str, b: str) -> Prompt:
        plain = ask(prompt, a, b)
        return Prompt.text(f"{plain.id}|{rubric}", f"{rubric.strip()}\n\n{plain.last}")

    return put


def lessons(pairs: Iterable[tuple[Prompt, str, str]], ask: Ask = ask, words: tuple[str, str] = WORDS) -> list[Prompt]:
    """(prompt, better, worse) as demonstrations, each in both orders: no place is right more often than the other."""
    asked = [(ask(p, a, b), first) for p, x, y in pairs for a, b, first in ((x, y, True), (y, x, False))]
    return [replace(q, info=q.info | {"demonstration": words[0] if first else words[1]}) for q, first in asked]


class PolicyJudge(WordJudge):
    """A policy as the judge of rewards/scorers/judging.py.

    P(a wins) = pi(A | x, a, b) / (pi(A | x, a, b) + pi(B | x, a, b)); ask in both orders, since it may like a place.
    """

    called = "policy"

    def __init__(
        self, policy: Policy, ask: Ask = ask, words: tuple[str, str] = WORDS, how: Sampling = SPOKEN, seed: int = 0
    ) -> None:
        self.policy, self.ask, self.words, self.how, self.seed = policy, ask, words, how, seed
        self.reported = (self.called,)

    @torch.no_grad()
    def prefer(
        self, prompts: Sequence[Prompt], a: Sequence[str], b: Sequence[str], criterion: Criterion | None = None
    ) -> list[float]:
        put = self.ask if criterion is None else asked_by(criterion.rubric)
        asked = [put(*match) for match in zip(prompts, a, b, strict=True)]
        self.calls += len(asked)
        window = getattr(self.policy, "window", 0) or math.inf
        said = [[self.policy.written(q, word) for word in self.words] for q in asked]
        fits = [i for i, two in enumerate(said) if all(len(r.context) + len(r) <= window for r in two)]
        found = dict(zip(fits, self.gaps([said[i] for i in fits]), strict=True))
        return [1 / (1 + math.exp(-max(min(found[i], 50.0), -50.0))) if i in found else NAN for i in range(len(asked))]

    def gaps(self, said: list[list[Rollout]]) -> list[float]:
        """log pi(first word) - log pi(second word) of each question, so many at a time."""
        was, out = self.policy.training, []
        self.policy.eval()
        for at in range(0, len(said), AT_ONCE):
            some = said[at : at + AT_ONCE]
            logp_B = self.policy.forward([r for two in some for r in two], ("logp_BT",))["logp_BT"].sum(-1).tolist()
            out += [x - y for x, y in zip(logp_B[::2], logp_B[1::2], strict=True)]
        self.policy.train(was)
        return out

    def said(self, questions: Sequence[str], system: str, attempt: int = 0) -> list[str | Failure]:
        """What the policy writes; a question that its window has no room for is a failure."""
        room = (getattr(self.policy, "window", 0) or math.inf) - self.how.max_tokens
        asked = [
            Prompt(f"judged-{rng.key(system, q) & 0xFFFFFFFF:x}", ({"role": "user", "content": f"{system}\n\n{q}"},))
            for q in questions
        ]
        fits = [len(self.policy.observe(p).tokens) <= room for p in asked]
        how = replace(self.how, temperature=1.0) if attempt else self.how
        some = [p for p, ok in zip(asked, fits, strict=True) if ok]
        made = iter(self.policy.sample(some, 1, how, self.seed, attempt) if some else [])
        full = Failure("raised", "the answers are longer than the judge's window has room for")
        return [next(made)[0].text if ok else full for ok in fits]


@scorer(title="Model as judge", paper="arXiv:2306.05685")
class ModelJudge(PolicyJudge):
    """Model as judge: a language model in a folder grades each answer, in words, or says by its probabilities which of two is better.

    model_judge(folder='Qwen2.5-7B-Instruct', rubric='Is it polite?')   points from low to high, as a reward from 0 to 1
    Where two answers are compared it is asked in both orders which is better, A or B.
    """

    by_name = {"folder": "folder"}
    called = "model_judge"

    def __init__(
        self, folder: str, rubric: str = RUBRIC, low: float = 0.0, high: float = 10.0, reference: bool = False,
        max_tokens: int = 256, device: str = "", again: int = 0,
    ) -> None:  # fmt: skip
        from posttrain.policies.load import load_model

        policy = load_model(folder, device or None).eval().requires_grad_(False)
        super().__init__(policy, asked_by(rubric), how=replace(SPOKEN, max_tokens=max_tokens))
        self.criterion, self.again = Criterion(rubric, "", low, high, reference), max(again, 0)
