"""The trainer's weights laid out for decoding: q, k and v in one product, gate and up in another.

The copies are refreshed from the live parameters whenever those have changed, so there is nothing else to keep in step.
Adapters (LoRA) are added into these copies, never into the weights that are trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.inference.attention import attend
from posttrain.inference.pages import Pages
from posttrain.inference.products import Turn, Where, add_norm, embed_norm, place, split_product
from posttrain.models.decoder import Decoder
from posttrain.models.elementwise import gate


@dataclass
class FusedLayer:
    """One layer's matrices and norms; biases are None where the model has none."""

    norm: Tensor
    qkv: Tensor
    turn: Turn
    out: Tensor
    out_bias: Tensor | None
    second: Tensor  # the norm before the MLP
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    def copies(self) -> Iterator[Tensor | None]:
        """What is a copy (or may be) of the model's own tensors."""
        yield from (self.qkv, self.turn.bias, self.gate_up, self.gate_up_bias, self.out, self.down)


class Fused:
    """A decoder for one token a slot, and for reading the prompts of slots."""

    def __init__(self, model: Decoder, length: int) -> None:
        self.model, c = model, model.config
        self.eps = c.rms_eps
        angle = torch.arange(length, device=model.inv_freq.device)[:, None].float() * model.inv_freq
        self.rope = (angle.cos().contiguous(), angle.sin().contiguous())
        self.layers = [self._fuse(block) for block in model.model.layers]
        self.seen = self._signature()

    def _signature(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self.model.parameters()]

    @torch.no_grad()
    def refresh(self) -> bool:
        """Copy the live weights in place if they have changed (captured graphs keep reading these addresses)."""
        now = self._signature()
        if now == self.seen:
            return False
        for mine, block in zip(self.layers, self.model.model.layers, strict=True):
            for old, new in zip(mine.copies(), self._fuse(block).copies(), strict=True):
                if old is not None and new is not None and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        self.seen = now
        return True

    def step(self, token_S: Tensor, pages: Pages, where: Where, mates: int = 1) -> Tensor:
        """Read one token a slot at its place; returns the logits (S, V) in float32. Mates are slots that attend together."""
        x, h = embed_norm(token_S, self.model.model.embed_tokens.weight, self.layers[0].norm, self.eps)
        for i, layer in enumerate(self.layers):
            k, v = pages.keys[i], pages.values[i]
            h = self._rest(i, x, attend(h @ layer.qkv.T, k, v, where, layer.turn, mates).flatten(1))
        return self.model.logits(h)

    def _rest(self, i: int, x: Tensor, seen: Tensor) -> Tensor:
        """What layer i does after attention to the residual stream, in place; returns what the next layer, or the head, reads."""
        layer = self.layers[i]
        h = add_norm(x, seen @ layer.out.T, layer.out_bias, layer.second, self.eps)
        y = split_product(gate(h @ layer.gate_up.T, layer.gate_up_bias), layer.down)
        after = self.layers[i + 1].norm if i + 1 < len(self.layers) else self.model.model.norm.weight.data
        return add_norm(x, y, layer.down_bias, after, self.eps)

    def read(
        self, tokens_PL: Tensor, count_P: Tensor, table_PM: Tensor, pages: Pages, past_P: Tensor | None = None, used: int = 0
    ) -> None:  # fmt: skip
        """Read count new tokens of each text (right-padded) into its pages, after the past ones that they hold already;
        `used` is how many places the longest has then, where any has a past."""
        (P, L), device = tokens_PL.shape, tokens_PL.device
        positions_PL = torch.arange(L, device=device).expand(P, L)
        if past_P is not None:
            positions_PL, count_P = positions_PL + past_P.unsqueeze(-1), count_P + past_P
        row_PL = torch.where(positions_PL < count_P.unsqueeze(-1), torch.arange(P, device=device).unsqueeze(-1), P)
        at_N = positions_PL.clamp_max(len(self.rope[0]) - 1).flatten()  # padding may lie beyond the longest text
        nobody = torch.zeros_like(table_PM[:1])  # padding goes to the page that belongs to nobody
        where = Where(torch.cat((table_PM, nobody)), torch.zeros_like(at_N), at_N, row_PL.flatten())
        table_PM, mask = table_PM[:, : pages.needed(used)].long(), None
        if used:
            mask = (torch.arange(used, device=device) <= positions_PL.unsqueeze(-1)).unsqueeze(1)
        x, h = embed_norm(tokens_PL.flatten(), self.model.model.embed_tokens.weight, self.layers[0].norm, self.eps)
        for i, layer in enumerate(self.layers):
            keys, values = pages.keys[i], pages.values[i]
            q, k, v = (y.unflatten(0, (P, L)) for y in place(h @ layer.qkv.T, keys, values, where, layer.turn))
            if i + 1 < len(self.layers):  # of the last layer only keys and values are wanted
                if mask is not None:
                    k, v = (y[table_PM].transpose(2, 3).flatten(1, 2)[:, :used] for y in (keys, values))
                h = self._rest(i, x, look_back(q, k, v, mask).flatten(0, 1))

    def _fuse(self, block: Any) -> FusedLayer:
        a, m = block.self_attn, block.mlp
        norms = (a.q_norm.weight.data, a.k_norm.weight.data) if hasattr(a.q_norm, "weight") else None
        qkv, up = [a.q_proj, a.k_proj, a.v_proj], [m.gate_proj, m.up_proj]
        return FusedLayer(
            block.input_layernorm.weight.data,
            _joined(qkv),
            Turn(_biases(qkv), norms, self.rope, self.eps),
            _weight(a.o_proj),
            None if a.o_proj.bias is None else a.o_proj.bias.data,
            block.post_attention_layernorm.weight.data,
            _joined(up),
            _biases(up),
            _weight(m.down_proj),
            None if m.down_proj.bias is None else m.down_proj.bias.data,
        )


def look_back(q_PLHD: Tensor, k_PTHD: Tensor, v_PTHD: Tensor, mask: Tensor | None) -> Tensor:
    """Causal attention of many tokens a text, over themselves or, with a mask, over all that the text has; returns (P, L, H D)."""
    q, k, v = (x.transpose(1, 2) for x in (q_PLHD, k_PTHD, v_PTHD))
    shared = q.shape[1] != k.shape[1]
    if mask is not None and shared and q.is_cuda:  # with a mask the fast kernels want a key head for every query head
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        shared = False
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=shared)
    return out.transpose(1, 2).flatten(2)


def _weight(linear: Any) -> Tensor:
    """A layer's matrix with its adapter added, the matrix itself where it has none."""
    return linear.merged() if hasattr(linear, "merged") else linear.weight.data


def _joined(linears: list[Any]) -> Tensor:
    return torch.cat([_weight(layer) for layer in linears])


def _biases(linears: list[Any]) -> Tensor | None:
    return None if linears[0].bias is None else torch.cat([layer.bias.data for layer in linears])
