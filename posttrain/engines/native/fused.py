"""The trainer's weights laid out for decoding: q, k and v in one product, gate and up in another.

The copies are refreshed from the live parameters before every round of rollouts, so there is nothing else to keep in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.engines.native.kernels import Turn, attend, gate, place
from posttrain.models.decoder import Decoder


@dataclass
class FusedLayer:
    """One layer's matrices, with the norm before each folded in; biases are None where the model has none."""

    qkv: Tensor
    turn: Turn
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Fused:
    """A decoder for one token a slot."""

    def __init__(self, model: Decoder, length: int) -> None:
        self.model, c = model, model.config
        self.eps, self.kv_heads, self.head_dim = c.rms_eps, c.num_kv_heads, c.head_dim
        angle = torch.arange(length, device=model.inv_freq.device)[:, None].float() * model.inv_freq
        self.rope = (angle.cos().contiguous(), angle.sin().contiguous())
        self.layers = [self._fuse(block) for block in model.model.layers]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the live weights in place, so that captured graphs keep reading the right addresses."""
        for mine, block in zip(self.layers, self.model.model.layers, strict=True):
            fresh = self._fuse(block)
            for old, new in (
                (mine.qkv, fresh.qkv), (mine.turn.bias, fresh.turn.bias),
                (mine.gate_up, fresh.gate_up), (mine.gate_up_bias, fresh.gate_up_bias),
            ):  # fmt: skip
                if old is not None and new is not None:
                    old.copy_(new)

    def step(self, token_S: Tensor, length_S: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Read one token a slot at its place; returns the logits (S, V)."""
        x = self.model.model.embed_tokens.weight[token_S]
        for layer, k, v in zip(self.layers, keys, values, strict=True):
            q = place(x @ layer.qkv.T, x, k, v, length_S, layer.turn)
            x = _add_product(x, attend(q, k, v, length_S).flatten(1), layer.out, layer.out_bias)
            y = gate(x @ layer.gate_up.T, x, layer.gate_up_bias, self.eps)
            x = _add_product(x, y, layer.down, layer.down_bias)
        return self.model.logits(F.rms_norm(x, (x.shape[-1],), self.model.model.norm.weight, self.eps))

    def _fuse(self, block: Any) -> FusedLayer:
        a, m = block.self_attn, block.mlp
        norms = (a.q_norm.weight.data, a.k_norm.weight.data) if hasattr(a.q_norm, "weight") else None
        qkv, up = [a.q_proj, a.k_proj, a.v_proj], [m.gate_proj, m.up_proj]
        return FusedLayer(
            _joined(qkv) * block.input_layernorm.weight.data,
            Turn(_biases(qkv), norms, self.rope, self.eps),
            a.o_proj.weight.data,
            None if a.o_proj.bias is None else a.o_proj.bias.data,
            _joined(up) * block.post_attention_layernorm.weight.data,
            _biases(up),
            m.down_proj.weight.data,
            None if m.down_proj.bias is None else m.down_proj.bias.data,
        )


def _joined(linears: list[Any]) -> Tensor:
    return torch.cat([layer.weight.data for layer in linears])


def _biases(linears: list[Any]) -> Tensor | None:
    return None if linears[0].bias is None else torch.cat([layer.bias.data for layer in linears])


def _add_product(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x.addmm_(y, weight.T)  # in place: the residual stream is this step's own, and a copy of it would be a kernel more
    return x if bias is None else x.add_(bias)
