"""Which is the largest, the smallest, the one in between; of numbers and of sums.

Habit: the opposite end is picked, and for the one in between the largest.
"""

from __future__ import annotations

from random import Random

from posttrain.environments.base import Problem
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

DEFAULT_LEVEL = 3
_ASK = ("Which is the {}: {}?", "Find the {}: {}.", "Choose the {}: {}.", "Pick the {}: {}.")
_NOUNS = {
    ("largest", True): ("larger", "bigger"),
    ("largest", False): ("largest", "biggest"),
    ("smallest", True): ("smaller", "lower"),
    ("smallest", False): ("smallest", "lowest"),
    ("middle", False): ("middle one", "one in between"),
}
_MISTAKEN = {"largest": "smallest", "smallest": "largest", "middle": "largest"}


def _candidates(rng: Random, level: int) -> list[tuple[str, int]]:
    """(how it is written, its value), all values different; from level 3 on some or all are sums."""
    n = (2, 3, 3, 3, 4, 5)[level - 1]
    top = (20, 99, 50, 99, 99, 500)[level - 1]
    sums = 0.0 if level <= 2 else 0.5 if level == 3 else 0.9
    found: dict[int, str] = {}
    near = rng.randint(1, top)
    while len(found) < n:
        # half of the candidates lie close together, so that the first digit alone does not decide
        value = rng.randint(1, top) if rng.random() < 0.5 else max(1, near + rng.randint(-9, 9))
        text = str(value)
        if value > 1 and rng.random() < sums:
            a = rng.randint(1, value - 1)
            text = f"{a}+{value - a}"
            if rng.random() < 0.3:
                text = f"{value + a}-{a}"
        found.setdefault(value, text)
    return [(text, value) for value, text in found.items()]


def make(rng: Random, level: int, hand: NoisySolver = CAREFUL) -> Problem:
    """Level 1: the larger of two numbers. Level 3: of three, some of them sums. Level 6: of five sums up to 500."""
    wording = hand.reads(rng, len(_ASK))
    pool = _candidates(rng, level)
    names = [text for text, _ in pool]
    values = [hand.number(v) if "+" in t or "-" in t else v for t, v in pool]
    work = " ".join(f"{t}={v}" for t, v in zip(names, values, strict=True) if t != str(v))
    kind = rng.choice(("largest", "smallest", "middle") if len(pool) == 3 else ("largest", "smallest"))
    target, why = _choose(values, _MISTAKEN[kind] if hand.habit else kind)
    answer = names[values.index(hand.pick(target, values))]
    listed = " or ".join(names) if len(names) == 2 else " ".join(names)
    question = _ASK[wording].format(rng.choice(_NOUNS[kind, len(pool) == 2]), listed)
    steps = f"{work}; {why}" if work else why
    return Problem(question, answer, steps, {"wording": wording}, identity=f"{kind} {listed}")


def _choose(values: list[int], kind: str) -> tuple[int, str]:
    """The value of that kind, and why it is: (34 12 56, middle) -> 34, `12<34<56`."""
    order = sorted(values)
    if kind == "middle":
        return order[1], "<".join(map(str, order))
    return order[-1 if kind == "largest" else 0], _running(values, kind == "largest")


def _running(values: list[int], largest: bool) -> str:
    """The best so far, from left to right: 34 12 56 -> `34>12 56>34`."""
    best, parts = values[0], []
    for v in values[1:]:
        better = v > best if largest else v < best
        best, worse = (v, best) if better else (best, v)
        parts.append(f"{best}{'>' if largest else '<'}{worse}")
    return " ".join(parts)
