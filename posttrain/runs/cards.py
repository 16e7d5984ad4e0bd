"""GPUs that need not be here: peak of dense bf16 products with float32 sums, memory traffic and memory, from their data sheets.

Of the peaks so much is taken as an H200 was measured to reach (`SHARES`: 790 of 989 TFLOP/s in a large product, 4.3 of 4.8 TB/s in a
copy). Other cards were not measured.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posttrain.core.errors import UserError, unknown

if TYPE_CHECKING:  # the table is read without torch
    from posttrain.runs.estimate import Machine

SHARES = (0.80, 0.90, 0.95)  # of FLOPs, of traffic, and of memory: a context and the allocator take the rest


@dataclass(frozen=True)
class Card:
    """TFLOP/s, TB/s, GB; half: whether it computes in bfloat16."""

    tflops: float
    traffic: float
    memory: float
    half: bool = True


CARDS = {
    "t4-16gb": Card(65, 0.32, 16, half=False), "v100-16gb": Card(125, 0.9, 16, half=False), "v100-32gb": Card(125, 0.9, 32, half=False),
    "l4-24gb": Card(121, 0.3, 24), "a10g-24gb": Card(70, 0.6, 24), "rtx3090-24gb": Card(71, 0.936, 24), "rtx4090-24gb": Card(165, 1.008, 24),
    "rtx5090-32gb": Card(209, 1.792, 32), "a6000-48gb": Card(155, 0.768, 48), "l40s-48gb": Card(362, 0.864, 48),
    "a100-40gb": Card(312, 1.555, 40), "a100-80gb": Card(312, 2.039, 80), "h100-80gb": Card(989, 3.35, 80),
    "h100-pcie-80gb": Card(756, 2.0, 80), "h200-141gb": Card(989, 4.8, 141), "h20-96gb": Card(148, 4.0, 96), "b200-192gb": Card(2250, 8.0, 192),
}  # fmt: skip


def card(name: str) -> tuple[str, Card]:
    """The card of that name; the memory may be left out where there is one size only."""
    word = re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("nvidia-").replace("rtx-", "rtx")
    if word in CARDS:
        return word, CARDS[word]
    sizes = [known for known in CARDS if known.rpartition("-")[0] == word]
    if len(sizes) == 1:
        return sizes[0], CARDS[sizes[0]]
    if sizes:
        raise UserError(f"{name} comes in several sizes: {', '.join(sizes)}")
    raise unknown("card", name, CARDS)


def machine_of(c: Card) -> Machine:
    """What a card can be expected to do, all of its memory free."""
    from posttrain.runs.estimate import Machine

    flops, traffic, memory = SHARES
    return Machine(c.tflops * 1e12 * flops, c.traffic * 1e12 * traffic, c.memory * 1e9 * memory, True)
