"""The trainer's weights laid out for decoding: q, k and v in one product, gate and up in another.

The copies are refreshed from the live parameters before every round of rollouts, so there is nothing else to keep in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.engines.native.kernels import attend, gate, place
from posttrain.models.decoder import Decoder


@dataclass
class FusedLayer:
    """One layer's matrices; biases and norms are None where the model has none."""

    norm_in: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    norms: tuple[Tensor, Tensor] | None
    out: Tensor
    out_bias: Tensor | None
    norm_mlp: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Fused:
    """A decoder for one token a slot."""

    def __init__(self, model: Decoder, length: int) -> None:
        self.model, c = model, model.config
        self.eps, self.heads, self.kv_heads, self.head_dim = c.rms_eps, c.num_heads, c.num_kv_heads, c.head_dim
        angle = torch.arange(length, device=model.inv_freq.device)[:, None].float() * model.inv_freq
        self.rope = (angle.cos().contiguous(), angle.sin().contiguous())
        self.layers = [_fuse(block) for block in model.model.layers]
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the live weights in place, so that captured graphs keep reading the right addresses."""
        for mine, block in zip(self.layers, self.model.model.layers, strict=True):
            fresh = _fuse(block)
            mine.qkv.copy_(fresh.qkv)
            mine.gate_up.copy_(fresh.gate_up)
            for name in ("qkv_bias", "gate_up_bias"):
                if getattr(mine, name) is not None:
                    getattr(mine, name).copy_(getattr(fresh, name))

    def step(self, token_S: Tensor, length_S: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        """Read one token a slot at its place; returns the logits (S, V)."""
        x = self.model.model.embed_tokens.weight[token_S]
        for layer, k, v in zip(self.layers, keys, values, strict=True):
            h = F.rms_norm(x, (x.shape[-1],), layer.norm_in, self.eps)
            q = place(F.linear(h, layer.qkv, layer.qkv_bias), k, v, length_S, self.rope, layer.norms, self.eps)
            x = _add_product(x, attend(q, k, v, length_S).flatten(1), layer.out, layer.out_bias)
            h = F.rms_norm(x, (x.shape[-1],), layer.norm_mlp, self.eps)
            x = _add_product(x, gate(F.linear(h, layer.gate_up, layer.gate_up_bias)), layer.down, layer.down_bias)
        return self.model.logits(F.rms_norm(x, (x.shape[-1],), self.model.model.norm.weight, self.eps))


def _add_product(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    x.addmm_(y, weight.T)  # in place: the residual stream is this step's own, and a copy of it would be a kernel more
    return x if bias is None else x.add_(bias)


def _fuse(block: Any) -> FusedLayer:
    a, m = block.self_attn, block.mlp
    norms = (a.q_norm.weight.data, a.k_norm.weight.data) if hasattr(a.q_norm, "weight") else None

    def joined(parts: list[Any], name: str) -> Tensor | None:
        found = [getattr(p, name) for p in parts]
        return None if found[0] is None else torch.cat([f.data for f in found])

    qkv, up = [a.q_proj, a.k_proj, a.v_proj], [m.gate_proj, m.up_proj]
    return FusedLayer(
        block.input_layernorm.weight.data, joined(qkv, "weight"), joined(qkv, "bias"), norms,  # type: ignore[arg-type]
        a.o_proj.weight.data, None if a.o_proj.bias is None else a.o_proj.bias.data,
        block.post_attention_layernorm.weight.data, joined(up, "weight"), joined(up, "bias"),  # type: ignore[arg-type]
        m.down_proj.weight.data, None if m.down_proj.bias is None else m.down_proj.bias.data,
    )  # fmt: skip
