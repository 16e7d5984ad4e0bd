"""Who is preferred: labels of pairs from a hidden utility, as noisy as people are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt

Utility = Callable[[Prompt, str], float]


def preference(first: float, second: float, temperature: float = 1.0, flip: float = 0.0) -> float:
    """The chance that the first of two utilities is labelled as preferred (Bradley-Terry with flips).

    P = flip + (1 - 2 flip) sigmoid((u_1 - u_2) / temperature);  temperature 0: the better one, and 1/2 for equals
    """
    gap = first - second
    if temperature == 0:
        p = 0.5 if gap == 0 else float(gap > 0)
    else:
        p = 0.5 * (1 + math.tanh(gap / temperature / 2))
    return flip + (1 - 2 * flip) * p


def label_pairs(
    prompts: Sequence[Prompt], answers: Sequence[Sequence[str]], utility: Utility, noise: float = 0.1,
    temperature: float = 0.5, seed: int = 0,
) -> list[dict[str, Any]]:  # fmt: skip
    """One labelled pair per prompt from its first two answers: rows with id, prompt, chosen, rejected and whether the
    label is right. noise is the share of labels that are flipped whatever the answers; pairs of equal answers go.
    """
    if not 0 <= noise <= 0.5 or temperature < 0:
        raise UserError(f"noise is {noise}, temperature {temperature}; expected 0 <= noise <= 0.5 and temperature >= 0")
    rows = []
    for prompt, (a, b, *_) in zip(prompts, answers, strict=True):
        if a == b:
            continue
        u_a, u_b = utility(prompt, a), utility(prompt, b)
        first = draws.python(seed, "label", prompt.id).random() < preference(u_a, u_b, temperature, noise)
        chosen, rejected = (a, b) if first else (b, a)
        label = {"chosen": chosen, "rejected": rejected, "right": u_a == u_b or (u_a > u_b) == first}
        rows.append({"id": prompt.id, "prompt": list(prompt.content), **label})
    return rows
