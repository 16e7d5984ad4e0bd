"""Memory of one card by part, for a trainer rank whose weights are sharded and for a card that makes rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from posttrain.planning.shapes import Shape
from posttrain.planning.work import Work

PAGE = 64  # positions per page of keys and values: posttrain/inference/pages.py
SHARE = 0.5  # of the free memory, at most, for keys and values: posttrain/inference/engine.py
MAX_SLOTS = 1024  # answers at a time: posttrain/inference/engine.py
CHUNK = 1 << 27  # logits at a time: posttrain/models/likelihood.py
USED, RESERVED = (
    0.8,
    6 * (1 << 29),
)  # of the free memory for activations, and bytes left for logits: posttrain/models/packed.py
PREFETCHED = 2  # layers whose gathered weights are in memory at once: the present one and the next


@dataclass(frozen=True)
class Memory:
    """Bytes by part, of the `free` ones of a card."""

    parts: dict[str, float]
    free: float
    slots: int = 0  # answers at a time
    recomputed: int = 0  # layers that compute their activations again in backward

    @property
    def total(self) -> float:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.total <= self.free


def trained_parameters(s: Shape, work: Work) -> int:
    return s.adapters(work.lora) if work.lora else s.parameters


def resident(s: Shape, work: Work, ranks: int) -> dict[str, float]:
    """What a trainer rank keeps all the time. Shards are 1 / ranks of it, in fp32; frozen weights beside adapters in bf16.

    The embedding, the last norm and the head are the root of the sharded tree, which stays gathered through a pass.
    """
    trained = trained_parameters(s, work)
    gathered = 2.0 * (PREFETCHED * s.layer + s.ends)
    summed = 4.0 * (s.adapters(work.lora) / s.layers if work.lora else s.layer + s.ends)
    return {
        "fp32 shards of the parameters": 4.0 * trained / ranks,
        "frozen weights, sharded": 2.0 * s.parameters / ranks if work.lora else 0.0,
        "optimiser": 8.0 * trained / ranks,
        "gradients": 4.0 * trained / ranks,
        "gathered bf16 layers": gathered + summed,
        "reference": 2.0 * s.parameters / ranks if work.reference else 0.0,
        "critic": 16.0 * trained / ranks if work.critic == "own" else 0.0,
    }


def activation_bytes(s: Shape) -> int:
    """What one layer keeps per token for backward, bf16, rows packed without padding (`runs/estimate.py` has the same)."""
    return 2 * (6 * s.hidden + 2 * s.wide + 3 * s.inner + 2 * s.narrow)


def passing(s: Shape, work: Work, room: float) -> tuple[dict[str, float], int]:
    """(activations and logits of one cell, layers that recompute): only their inputs are kept where there is no room for more.

    Where cards share a cell each has its part of the tokens, and for a layer the keys and values of all of them (`models/context.py`).
    """
    own = -(-work.cell // work.divided)
    tokens = own * work.trunks
    more = 2 * 2 * s.narrow * (work.cell - own) / own  # keys and values of others, per token of one's own
    kept, least = activation_bytes(s) + more, 6 * s.hidden  # the stream in fp32, what is to be added to it in bf16
    logits = 2.0 * min(own * s.vocab, CHUNK)
    over = tokens * kept * s.layers - (USED * room - RESERVED)
    recomputed = max(0, min(s.layers, -int(-over // (tokens * (kept - least)))))
    held = (s.layers - recomputed) * kept + recomputed * least + (kept if recomputed else 0)  # one at a time in full
    return {"activations": float(tokens * held), "logits, in chunks": logits}, recomputed


def keys_and_values(s: Shape, work: Work, room: float, answers: int, tp: int = 1) -> tuple[float, int]:
    """(bytes, answers at a time): pages for every answer's full length where half of the room has them; where it has not, as many
    answers as their usual lengths leave room for (the engine preempts the youngest when pages run out)."""
    page = PAGE * s.position_bytes() / tp
    full, usual, shared = (
        math.ceil(x / PAGE) * page for x in (work.lengths.most, work.lengths.held, work.prompt_tokens)
    )
    prompt, most = shared / work.n, min(answers, MAX_SLOTS)
    limit = max(0.0, SHARE * room)
    slots = int(min(most, limit // (usual + prompt)))
    return min(limit, most * (full + prompt)) if slots else 0.0, slots


def fused(s: Shape, work: Work) -> float:
    """What posttrain's engine copies besides: queries, keys and values in one matrix, gate and up in another; with adapters, which it
    adds to them, every projection (posttrain/inference/fused.py)."""
    joined = s.hidden * (s.wide + 2 * s.narrow + 2 * s.inner)
    return 2.0 * s.layers * (s.projections if work.lora else joined)


def trainer(s: Shape, work: Work, ranks: int, free: float) -> Memory:
    """A card that trains and does not sample. It keeps the weights whole in bf16 all the same: to publish them, and to evaluate."""
    parts = resident(s, work, ranks) | {"whole bf16 copy": 2.0 * s.parameters}
    more, recomputed = passing(s, work, free - sum(parts.values()))
    return Memory(parts | more, free, 0, recomputed)


def worker(s: Shape, work: Work, answers: int, free: float, tp: int = 1) -> Memory:
    """A card that samples `answers` at a time at most, with the model on `tp` cards, and a reward model beside it. An engine of several
    cards is not posttrain's own, and keeps its weights once."""
    parts = {"engine's weights": 2.0 * s.parameters / tp, "reward model": reward_bytes(work)}
    parts |= {"engine's joined matrices": fused(s, work)} if tp == 1 else {}
    cache, slots = keys_and_values(s, work, free - sum(parts.values()), answers, tp)
    return Memory(parts | {"keys and values": cache}, free, slots)


def colocated(s: Shape, work: Work, ranks: int, answers: int, free: float) -> Memory:
    """A card that does both in turn: the engine keeps a copy of the weights and its pages while it trains."""
    parts = resident(s, work, ranks) | {"engine's weights": 2.0 * s.parameters, "reward model": reward_bytes(work)}
    parts |= {"engine's joined matrices": fused(s, work)}
    tightest, _ = passing(s, work, -1.0)  # training must fit beside the pages even if every layer recomputes
    room = free - sum(parts.values())
    cache, slots = keys_and_values(s, work, min(room, (room - sum(tightest.values())) / SHARE), answers)
    more, recomputed = passing(s, work, room - cache)
    return Memory(parts | {"keys and values": cache} | more, free, slots, recomputed)


def reward_bytes(work: Work) -> float:
    return 2.0 * work.reward_shape.parameters if work.reward_shape else 0.0
