"""Rewards of strangers and answers of strangers: whatever comes back is a number or is masked and counted, never an exception."""

from __future__ import annotations

import math
import random
from typing import Any

from posttrain.core.registry import parts
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.score import RewardSum
from tests.fuzz.judge import TEXTS, tried, value

_NEEDS = ("task", "http-scorer", "rule-fraction", "code", "reward-model")  # rewards that want a live part or a server


class Odd:
    """An object whose methods raise."""

    def __init__(self, rng: random.Random) -> None:
        self.broken = {name for name in ("item", "repr", "float", "tolist") if rng.random() < 0.5}

    def item(self) -> Any:
        raise OSError("item") if "item" in self.broken else ValueError("item")

    def tolist(self) -> Any:
        if "tolist" in self.broken:
            raise KeyError("tolist")
        return [1.0]

    def __float__(self) -> float:
        if "float" in self.broken:
            raise ZeroDivisionError("float")
        return 1e400

    def __repr__(self) -> str:
        if "repr" in self.broken:
            raise RuntimeError("repr")
        return "odd"


def fuzz_rewards(seed: int, tries: int) -> list[str]:
    """Failures among `tries` scorings."""
    failures = []
    rules = [p for p in parts("reward") if p.name not in _NEEDS]
    for i in range(tries):
        rng = random.Random(f"rewards/{seed}/{i}")
        told: list[Any] = []
        scored = rule if rng.random() < 0.5 else function
        problem = tried(lambda rng=rng, told=told, scored=scored: scored(rng, told, rules))  # type: ignore[misc]
        if problem:
            failures.append(f"rewards, seed {seed} try {i}: {problem}; given {str(told)[:300]}")
    return failures


def rule(rng: random.Random, told: list[Any], rules: list[Any]) -> None:
    """A registered rule on texts and gold answers of any kind."""
    part = rng.choice(rules)
    prompts = [asked(rng) for _ in range(3)]
    texts = [text(rng) for _ in prompts]
    told.append((part.name, [p.answer for p in prompts], texts))
    checked(RewardSum([(part.name, part, 1.0)], timeout=20.0), prompts, texts)


def function(rng: random.Random, told: list[Any], rules: list[Any]) -> None:
    """A function of the user that returns, raises or changes whatever it likes, in any of the forms."""
    results = [Odd(rng) if rng.random() < 0.2 else value(rng) for _ in range(4)]
    mode = rng.randrange(5)
    told.append((mode, [type(x).__name__ for x in results]))

    def one(prompt: Any, text: str) -> Any:
        prompt.info.clear()
        if mode == 1:
            raise rng.choice((ValueError, KeyError, RecursionError, SystemExit, OverflowError))("x" * 1000)
        return results[len(text) % 4]

    def many(prompts: Any, texts: Any) -> Any:
        n = len(texts)
        texts.clear(), prompts.sort(key=lambda p: p.id, reverse=True)
        return results[:n] if mode == 2 else results[0]

    def trl(prompts: Any, completions: Any, **columns: Any) -> Any:
        n = len(completions)
        completions.reverse()
        [c.clear() for c in columns.values() if isinstance(c, list)]
        return results[:n]

    weight = rng.choice((1.0, 0.0, -2.0, 1e300, 1e-300))
    rewards = [("one", one, weight), ("many", many, weight), ("trl", trl, 1.0)]
    prompts = [asked(rng) for _ in range(rng.randint(1, 4))]
    before = [(p.id, p.last, repr(p.info)) for p in prompts]
    checked(RewardSum(rng.sample(rewards, rng.randint(1, 3)), timeout=20.0), prompts, [text(rng) for _ in prompts])
    assert before == [(p.id, p.last, repr(p.info)) for p in prompts], "a reward changed the prompts"


def asked(rng: random.Random) -> Prompt:
    answer = rng.choice(("7", "1,234.5", "yes", "B", "", None, 7, 2.5, ["7", "8"], rng.choice(TEXTS)))
    return Prompt.text(f"p{rng.random()}", "What?", answer, choices=["a", "b"], tags=["x"])


def text(rng: random.Random) -> str:
    return "".join(
        rng.choice((*TEXTS, "7", "</think>", "\\boxed{7}", "<answer>7</answer>", "#### 7", "B"))
        for _ in range(rng.randint(0, 4))
    )


def checked(scorer: RewardSum, prompts: list[Prompt], texts: list[str]) -> None:
    """Numbers are finite and can be averaged; what is not a number is counted."""
    totals, report = scorer.texts(prompts, texts)
    assert len(totals) == len(texts) and all(math.isnan(x) or abs(x) <= 1e15 for x in totals), totals
    assert report.masked == sum(map(math.isnan, totals))
    assert report.masked <= sum(r.failed + r.skipped for r in report.rewards) or not report.masked
    str(report).encode()


__all__ = ["fuzz_rewards"]
