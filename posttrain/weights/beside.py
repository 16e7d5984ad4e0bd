"""What a learner asks its reference for, and how that and its own forward pass come into the batch.

Streams of one number a token are made once, before the step's updates, and kept. What a whole distribution is made of (hidden states and
the head) is made for one piece at a time, stays where it was made, and is gone after the piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import Part
from posttrain.core.turn import Turn
from posttrain.weights.known import Known

LARGE = ("hidden_BTD", "head_VD")


def asked_of(reference: Part, reads: Iterable[str], rollout: Part) -> tuple[list[str], list[str]]:
    """(streams that are kept for the step, streams of a piece): those named ref_..., and what this reference provides besides (a
    teacher's likeliest tokens) unless the rollouts bring it."""
    own = set(reference.card.provides) - set(rollout.card.provides)
    every = sorted(name for name in reads if name.startswith("ref_") or name in own)
    large = [name for name in every if name.removeprefix("ref_") in LARGE]
    return [name for name in every if name not in large], large


def told(reference: Any, rows: Sequence[Turn], names: Sequence[str]) -> dict[str, Tensor]:
    """Streams of the reference, by their names in the batch; what is known of rows beforehand is not asked again."""
    if not names:
        return {}
    known: Known | None = getattr(reference, "known", None)
    with torch.no_grad():
        if known is not None and list(names) == ["ref_logp_BT"]:
            told_BT = known.of(reference.policy, lambda some: reference.streams(some, ["logp_BT"])["logp_BT"], rows)
            if told_BT is not None:
                return {"ref_logp_BT": told_BT}
        found = reference.streams(rows, [name.removeprefix("ref_") for name in names])
    return {name: found[name.removeprefix("ref_")] for name in names}


def with_live(part: Batch, live: Mapping[str, Tensor], beside: Mapping[str, Tensor]) -> Batch:
    """A piece with the streams of the learner's forward pass, and those of its reference that are made with it."""
    there = part.mask_BT.device
    return part.but(**{k: x if k in LARGE else x.to(there) for k, x in live.items()}, **beside)
