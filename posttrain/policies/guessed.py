"""Log-probabilities of given actions where the policy has read, in part, what it would have said itself (intuitive fine-tuning)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.core.batch import pad
from posttrain.core.errors import UserError
from posttrain.core.turn import Turn
from posttrain.models.layout import Rows
from posttrain.models.likelihood import CHUNK

MIX = "mix"  # a stream of actions: the share of the policy's own guess in what is read of each


def mixed_states(model: Any, turns: Sequence[Turn], rows: Rows, h_BTD: Tensor) -> Tensor:
    """States before each action (B, T, D) of a second pass, in which every action is read as (1 - mix) E(action) + mix E(guess); the
    guess is the likeliest token after what was really written, h_BTD: the states of that first pass. No gradient reaches E."""
    if not hasattr(model, "embed"):
        raise UserError("this kind of model reads tokens alone; mixing what it reads needs a decoder with embeddings")
    if rows.seen_P:
        raise UserError("prompts with pictures or sound cannot be mixed with guesses of tokens")
    T = rows.actions_BT.shape[1]
    mix_BT = pad([t.streams_T.get(MIX, torch.zeros(len(t))).float() for t in turns], T).to(h_BTD.device)
    with torch.no_grad():
        read_BLD = model.embed(rows.tokens_BL)
        guess_BTD = model.embed(likeliest(model, h_BTD, rows))
        mix_BT1 = torch.where(rows.real_BT, mix_BT, 0.0).unsqueeze(-1).to(read_BLD.dtype)
        b_B1 = torch.arange(len(turns), device=h_BTD.device).unsqueeze(-1)
        place_BT = (rows.before_BT + 1).clamp_max(read_BLD.shape[1] - 1)
        changed_BTD = mix_BT1 * (guess_BTD - read_BLD[b_B1, place_BT])
        read_BLD = read_BLD.index_put((b_B1.expand_as(place_BT), place_BT), changed_BTD, accumulate=True)
    h_BLD = model.hidden(rows.tokens_BL, embedded=read_BLD)
    found_BTD: Tensor = h_BLD[b_B1, rows.before_BT]
    return found_BTD


def likeliest(model: Any, h_BTD: Tensor, rows: Rows) -> Tensor:
    """The likeliest action at each real place (B, T), 0 elsewhere; the head runs in chunks."""
    h_ND = h_BTD[rows.real_BT]
    head = getattr(model, "head_weight", None)
    size = max(1, CHUNK // len(head)) if head is not None else 64
    best_N = torch.cat([model.logits(h_ND[i : i + size]).argmax(-1) for i in range(0, len(h_ND), size)])
    return torch.zeros_like(rows.actions_BT).masked_scatter(rows.real_BT, best_N.to(rows.actions_BT.dtype))
