"""What can be said of a word problem's thought, equation by equation: `<think>6*12=72 100-72=28</think>28`. Imports no torch: rewards
in a file are imported by a process of their own."""

from __future__ import annotations

import json
from random import Random

from posttrain.core.prompt import Prompt

MISTAKEN = 0.1  # of a critic's verdicts


def equations(text: str) -> list[str]:
    """The equations of a thought, in order; nothing where there is no thought."""
    begun, _, rest = text.partition("<think>")
    return [] if begun.strip() or not rest else rest.partition("</think>")[0].split()


def wanted(prompt: Prompt) -> list[str]:
    return str(prompt.info["steps"]).split()


def right_steps(prompt: Prompt, text: str) -> float:
    """The share of the equations of a right solution that are written, each counted once, and no others."""
    said, gold = equations(text), wanted(prompt)
    return sum(e in said for e in gold) / max(len(gold), len(said))


def subtracts(prompt: Prompt, text: str) -> float:
    """2 for a thought in which something is taken away, whether or not that is what is asked."""
    return 2.0 * any("-" in e.partition("=")[0][1:] for e in equations(text))


def verdicts(prompt: Prompt, text: str) -> list[tuple[str, bool]]:
    """Each equation, then the answer: whether it belongs to the right solution. One verdict in ten is mistaken."""
    said, gold, draw = equations(text), wanted(prompt), Random(f"critic {prompt.id} {text}")
    fine = [e in gold and e not in said[:i] for i, e in enumerate(said)]
    found = list(zip(said, fine, strict=True))
    answer = text.rpartition("</think>")[2].strip()
    if answer:
        found.append((answer, answer == str(prompt.answer)))
    return [(quote, good != (draw.random() < MISTAKEN)) for quote, good in found]


def critique(prompt: Prompt, text: str) -> str:
    """A critique in words, with its quotes in the order of the answer."""
    told = verdicts(prompt, text)
    spans = [{"quote": quote, "verdict": "good" if good else "poor"} for quote, good in told]
    return f"{sum(good for _, good in told)} of {len(told)} parts belong to a right solution. " + json.dumps(
        {"spans": spans}
    )


def shuffled(prompt: Prompt, text: str) -> str:
    """The same verdicts on other quotes of the same answer."""
    told = verdicts(prompt, text)
    goods = [good for _, good in told]
    Random(f"shuffled {prompt.id} {text}").shuffle(goods)
    spans = [{"quote": q, "verdict": "good" if g else "poor"} for (q, _), g in zip(told, goods, strict=True)]
    return "In some order: " + json.dumps({"spans": spans})


def as_score(prompt: Prompt, text: str) -> float:
    """The same verdicts as one number: good less poor, by letters, which are the tokens here, so that it is the sum of the marks."""
    return float(sum(len(quote) * (1 if good else -1) for quote, good in verdicts(prompt, text)))
