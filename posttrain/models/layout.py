"""Rollouts laid out for a forward pass: right-padded rows, or several rows packed end to end into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import unknown
from posttrain.core.types import Rollout, pad

LAYOUTS = ("shared", "packed", "padded")


@dataclass
class Rows:
    """context + actions, right-padded to L; T is the longest run of actions."""

    tokens_BL: Tensor
    length_B: Tensor  # real tokens of each row
    actions_BT: Tensor
    before_BT: Tensor  # place of the state that chose each action
    real_BT: Tensor  # bool: an action is there
    prompt_B: Tensor  # which of the distinct contexts a row begins with
    first_P: Tensor  # a row that has each distinct context

    @property
    def last_B(self) -> Tensor:
        """Place of each row's last token."""
        return self.length_B - 1

    @staticmethod
    def of(rollouts: Sequence[Rollout], device: torch.device | str = "cpu") -> Rows:
        starts = torch.tensor([len(r.context) for r in rollouts])
        counts = torch.tensor([len(r) for r in rollouts])
        length_B = starts + counts
        T, L = int(counts.max()), int(length_B.max())
        tokens_BL = pad([torch.cat((r.context, r.actions)).long() for r in rollouts], L)
        actions_BT = pad([r.actions.long() for r in rollouts], T)
        t = torch.arange(T)
        real_BT = t < counts.unsqueeze(-1)
        before_BT = (starts.unsqueeze(-1) - 1 + t).clamp_max(L - 1)
        known: dict[bytes, int] = {}
        prompt_B = torch.tensor([known.setdefault(r.context.numpy().tobytes(), len(known)) for r in rollouts])
        first_P = torch.tensor([prompt_B.tolist().index(p) for p in range(len(known))])
        every = (tokens_BL, length_B, actions_BT, before_BT, real_BT, prompt_B, first_P)
        return Rows(*(x.to(device) for x in every))


def states(model: Any, rows: Rows, layout: str = "shared") -> tuple[Tensor, Tensor]:
    """States before each action (B, T, D) and after the last one (B, D). The layout changes speed, never the result.

    shared: a prompt is read once for all its answers; packed: rows end to end; padded: one row each. On a GPU in half
    precision both of the first are one stream without padding.
    """
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    if (
        layout != "padded"
        and rows.tokens_BL.is_cuda
        and hasattr(model, "hidden_packed")
        and model.head_weight.itemsize == 2
    ):
        return streamed(model, rows)
    row_B = torch.arange(rows.tokens_BL.shape[0], device=rows.tokens_BL.device)
    if layout == "shared" and hasattr(model, "hidden_shared") and len(rows.first_P) < len(row_B):
        starts_P = rows.before_BT[rows.first_P, 0] + 1
        contexts_PL = rows.tokens_BL[rows.first_P, : int(starts_P.max())]
        h_PD, h_BTD = model.hidden_shared(contexts_PL, starts_P, rows.prompt_B, rows.actions_BT)
        before_BTD = torch.cat((h_PD[rows.prompt_B].unsqueeze(1), h_BTD[:, :-1]), 1)
        return before_BTD, h_BTD[row_B, rows.last_B - rows.before_BT[:, 0] - 1]
    if layout == "packed":
        packed = pack(rows)
        h_NLD = model.hidden(packed.tokens_NL, packed.positions_NL, packed.segments_NL)
        return packed.states(h_NLD, rows.before_BT), packed.states(h_NLD, rows.last_B.unsqueeze(-1)).squeeze(1)
    h_BLD = model.hidden(rows.tokens_BL)
    return h_BLD[row_B.unsqueeze(-1), rows.before_BT], h_BLD[row_B, rows.last_B]


def streamed(model: Any, rows: Rows) -> tuple[Tensor, Tensor]:
    """The same, by way of a stream."""
    from posttrain.models.packed import PackedBatch, layers_to_recompute

    stream = PackedBatch.of(rows)
    needed = torch.is_grad_enabled() and rows.tokens_BL.is_cuda
    h_ND = model.hidden_packed(stream, layers_to_recompute(model, len(stream.tokens_N)) if needed else 0)
    return h_ND[stream.before_BT], h_ND[stream.last_B]


@dataclass
class Packed:
    """Rows end to end in N bins of L tokens; segments attend only within themselves."""

    tokens_NL: Tensor
    positions_NL: Tensor
    segments_NL: Tensor
    bin_B: Tensor
    offset_B: Tensor

    def states(self, h_NLD: Tensor, at_BT: Tensor) -> Tensor:
        """States at places counted from each row's own start."""
        place = (self.offset_B.unsqueeze(-1) + at_BT).clamp_max(h_NLD.shape[1] - 1)
        return h_NLD[self.bin_B.unsqueeze(-1), place]


def pack(rows: Rows, capacity: int | None = None) -> Packed:
    """First-fit, longest first: few bins, little padding."""
    lengths = rows.length_B.tolist()
    capacity = max(capacity or 0, max(lengths))
    space: list[int] = []
    place: list[tuple[int, int]] = [(0, 0)] * len(lengths)
    for b in sorted(range(len(lengths)), key=lambda b: -lengths[b]):
        n = next((i for i, left in enumerate(space) if left >= lengths[b]), len(space))
        if n == len(space):
            space.append(capacity)
        place[b] = (n, capacity - space[n])
        space[n] -= lengths[b]
    tokens = torch.zeros(len(space), capacity, dtype=torch.long, device=rows.tokens_BL.device)
    positions, segments = torch.zeros_like(tokens), torch.full_like(tokens, -1)
    for b, (n, at) in enumerate(place):
        tokens[n, at : at + lengths[b]] = rows.tokens_BL[b, : lengths[b]]
        positions[n, at : at + lengths[b]] = torch.arange(lengths[b], device=tokens.device)
        segments[n, at : at + lengths[b]] = b
    index = torch.tensor(place, device=tokens.device)
    return Packed(tokens, positions, segments, index[:, 0], index[:, 1])
