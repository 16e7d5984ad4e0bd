"""Rollouts laid out for a forward pass: right-padded rows, or several rows packed end to end into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import pad
from posttrain.core.errors import UserError, unknown
from posttrain.core.turn import Observation, Turn
from posttrain.models.rows import in_rows

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
    seen_P: dict[str, Tensor]  # what else the distinct contexts hold: pictures, sound

    @property
    def last_B(self) -> Tensor:
        """Place of each row's last token."""
        return self.length_B - 1

    @staticmethod
    def of(turns: Sequence[Turn], device: torch.device | str = "cpu") -> Rows:
        starts = torch.tensor([len(t.observation.tokens) for t in turns])
        counts = torch.tensor([len(t) for t in turns])
        length_B = starts + counts
        T, L = int(counts.max()), int(length_B.max())
        tokens_BL = pad([torch.cat((t.observation.tokens, t.actions)).long() for t in turns], L)
        actions_BT = pad([t.actions.long() for t in turns], T)
        t = torch.arange(T)
        real_BT = t < counts.unsqueeze(-1)
        before_BT = (starts.unsqueeze(-1) - 1 + t).clamp_max(L - 1)
        known: dict[bytes, int] = {}
        prompt_B = torch.tensor([known.setdefault(t.observation.key, len(known)) for t in turns])
        first_P = torch.tensor([prompt_B.tolist().index(p) for p in range(len(known))])
        every = (tokens_BL, length_B, actions_BT, before_BT, real_BT, prompt_B, first_P)
        seen_P = stacked([turns[i].observation for i in first_P.tolist()], device)
        tokens_BL, length_B, actions_BT, before_BT, real_BT, prompt_B, first_P = (x.to(device) for x in every)
        return Rows(tokens_BL, length_B, actions_BT, before_BT, real_BT, prompt_B, first_P, seen_P)

    @property
    def seen_B(self) -> dict[str, Tensor]:
        """The same for every row."""
        return {name: x[self.prompt_B] for name, x in self.seen_P.items()}


def stacked(seen: Sequence[Observation], device: torch.device | str) -> dict[str, Tensor]:
    """Streams of observations, one beside another; all must carry the same ones in one shape."""
    names = sorted({name for o in seen for name in o.streams})
    for name in names:
        shapes = {tuple(o.streams[name].shape) if name in o.streams else () for o in seen}
        if len(shapes) > 1:
            raise UserError(f"prompts of one batch carry {name} of different shapes: {sorted(shapes)}")
    return {name: torch.stack([o.streams[name] for o in seen]).to(device) for name in names}


def hidden_states(model: Any, rows: Rows, layout: str = "shared") -> tuple[Tensor, Tensor]:
    """States before each action (B, T, D) and after the last one (B, D). The layout changes speed, never the result.

    shared: a prompt is read once for all its answers; packed: rows end to end; padded: one row each. On a GPU in half
    precision both of the first are packed tokens without padding.
    """
    if layout not in LAYOUTS:
        raise unknown("layout", layout, LAYOUTS)
    if getattr(model, "context", None) is not None and torch.is_grad_enabled():  # every process would count all of it
        raise UserError(
            "this method learns from hidden states of whole rows, which --context-parallel divides; leave it away"
        )
    half = rows.tokens_BL.is_cuda and hasattr(model, "hidden_packed") and half_precision(model)
    if layout != "padded" and half and not rows.seen_P:
        return hidden_states_packed(model, rows)
    with_seen = {"seen": rows.seen_P} if rows.seen_P else {}  # a model that reads text alone need not know of it
    row_B = torch.arange(rows.tokens_BL.shape[0], device=rows.tokens_BL.device)
    repeats = len(rows.first_P) < len(row_B) or in_rows(
        model
    )  # where layers are gathered, all processes go the same way
    if layout == "shared" and hasattr(model, "hidden_shared") and repeats:
        starts_P = rows.before_BT[rows.first_P, 0] + 1
        contexts_PL = rows.tokens_BL[rows.first_P, : int(starts_P.max())]
        h_PD, h_BTD = model.hidden_shared(contexts_PL, starts_P, rows.prompt_B, rows.actions_BT, **with_seen)
        if in_rows(model):  # a gradient must come back through the prompts' pass, or its layers are not gathered for it
            h_BTD = h_BTD + 0.0 * h_PD.sum()
        before_BTD = torch.cat((h_PD[rows.prompt_B].unsqueeze(1), h_BTD[:, :-1]), 1)
        return before_BTD, h_BTD[row_B, rows.last_B - rows.before_BT[:, 0] - 1]
    if layout == "packed" and not rows.seen_P:
        packed = pack(rows)
        h_NLD = model.hidden(packed.tokens_NL, packed.positions_NL, packed.segments_NL)
        return packed.states(h_NLD, rows.before_BT), packed.states(h_NLD, rows.last_B.unsqueeze(-1)).squeeze(1)
    h_BLD = model.hidden(rows.tokens_BL, **({"seen": rows.seen_B} if rows.seen_P else {}))
    return h_BLD[row_B.unsqueeze(-1), rows.before_BT], h_BLD[row_B, rows.last_B]


def half_precision(model: Any) -> bool:
    """Whether the model computes in half precision; rows of a sharded one are kept in float32."""
    return bool(getattr(model, "computes_in", model.head_weight.dtype).itemsize == 2)


def hidden_states_packed(model: Any, rows: Rows) -> tuple[Tensor, Tensor]:
    """The same on packed tokens: on a GPU in half precision, without padding."""
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
