"""Preference labels from a hidden utility: pairs of a policy's own answers, compared by Bradley-Terry with noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from posttrain.core import rng
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.runs.in_memory import Listed

Utility = Callable[[list[Rollout]], Tensor]


def labelled_pairs(
    policy: Policy, prompts: list[Prompt], utility: Utility, n: int, seed: int, sharpness: float = 1.0, flip: float = 0.0
) -> Listed:  # fmt: skip
    """n pairs of different answers from the policy, over the prompts in turn, each with `chosen` and `rejected`.

    P(a over b) = sigmoid(sharpness (u_a - u_b)), and a share `flip` of the labels is turned round.
    """
    asked = [_copy(prompts[i % len(prompts)], i) for i in range(n)]
    made = policy.sample(asked, 2, Sampling(), seed, -1)
    worth = utility([r for pair in made for r in pair]).tolist()
    listed = []
    for i, (a, b) in enumerate(made):
        if a.text == b.text:
            continue
        draw = rng.python(seed, "label", i)
        odds = sharpness * (worth[2 * i] - worth[2 * i + 1])
        first = draw.random() < 1 / (1 + math.exp(-max(min(odds, 50.0), -50.0)))
        if (draw.random() < flip) == first:
            a, b = b, a
        listed.append(replace(asked[i], info=asked[i].info | {"chosen": a.text, "rejected": b.text}))
    return Listed(listed, "pairs")


def chosen_only(pairs: Listed) -> Listed:
    """The preferred answers as demonstrations."""
    return Listed([replace(p, info=p.info | {"demonstration": p.info["chosen"]}) for p in pairs.prompts], "chosen")


def _copy(prompt: Prompt, i: int) -> Prompt:
    return replace(prompt, id=f"{prompt.id}#{i}")
