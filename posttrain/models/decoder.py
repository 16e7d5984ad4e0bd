"""One compact dense decoder (Llama, SmolLM2, Mistral, Qwen2/2.5, Qwen3) for training and for sampling.

Parameters carry the names of Hugging Face checkpoints, so loading and saving a folder is a plain copy of tensors.
Rows are right-padded: causality alone keeps real tokens from attending to padding. The residual stream and the logits are
float32 whatever the weights are: in bf16 it is their rounding that makes sampler and trainer differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posttrain.core.errors import UserError
from posttrain.models.block_mask import block_mask
from posttrain.models.elementwise import add_rms_norm, rms_norm
from posttrain.models.likelihood import matmul_fp32
from posttrain.models.shape import DecoderConfig as DecoderConfig
from posttrain.models.shape import inverse_frequencies

if TYPE_CHECKING:
    from posttrain.models.packed import PackedBatch


class KVCache:
    """Keys and values of every layer in fixed slots (B, H, S, D); `lengths_B` says how many each row has filled."""

    def __init__(self, config: DecoderConfig, rows: int, slots: int, like: Tensor) -> None:
        shape = (rows, config.num_kv_heads, slots, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(config.num_layers)]
        self.values = [torch.zeros_like(k) for k in self.keys]
        self.lengths_B = torch.zeros(rows, dtype=torch.long, device=like.device)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row given twice is forked (a prompt's answers share its prefill)."""
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]
        self.lengths_B = self.lengths_B[rows]

    def views(self, at_B: Tensor | None, used: int = 0) -> list[CacheView]:
        """One view per layer; at_B is the slot of each row's new token, None while filling from slot 0."""
        rows_B = torch.arange(self.lengths_B.shape[0], device=self.lengths_B.device)
        return [CacheView(k, v, rows_B, at_B, used) for k, v in zip(self.keys, self.values, strict=True)]


class RMSNorm(nn.Module):
    """RMSNorm with an output in the type of its weight, whatever the type of its input."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """x + y and its norm, in one pass."""
        return add_rms_norm(x, y, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c.num_heads, c.num_kv_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, c.num_heads * c.head_dim, bias=c.qkv_bias)
        self.k_proj = nn.Linear(c.hidden_size, c.num_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.v_proj = nn.Linear(c.hidden_size, c.num_kv_heads * c.head_dim, bias=c.qkv_bias)
        self.o_proj = nn.Linear(c.num_heads * c.head_dim, c.hidden_size, bias=c.out_bias)
        self.q_norm = RMSNorm(c.head_dim, c.rms_eps) if c.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(c.head_dim, c.rms_eps) if c.qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, layer: CacheView | Prefix | None
    ) -> Tensor:
        B, T, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(B, T, self.heads, self.head_dim)).transpose(1, 2), rope)
        k = rotate(self.k_norm(self.k_proj(x).view(B, T, self.kv_heads, self.head_dim)).transpose(1, 2), rope)
        v = self.v_proj(x).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        if layer is not None:
            k, v = layer.write(k, v)
        shared = self.heads != self.kv_heads
        if shared and mask is not None and q.is_cuda:  # with a mask the fast kernels need one key head per query head
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, 1) for x in (k, v))
            shared = False
        causal = mask is None and T > 1
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=shared)
        y: Tensor = self.o_proj(out.transpose(1, 2).reshape(B, T, -1))
        return y


@dataclass
class CacheView:
    """One layer's view of the cache during one step: where the new tokens go and how far they attend back."""

    keys: Tensor
    values: Tensor
    rows_B: Tensor  # 0, 1, ... B - 1
    at_B: Tensor | None  # slot of the single new token of each row; None while filling from slot 0
    used: int  # slots that any row uses

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.at_B is None:
            self.keys[:, :, : k.shape[2]], self.values[:, :, : v.shape[2]] = k, v
            return k, v
        self.keys[self.rows_B, :, self.at_B] = k[:, :, 0]
        self.values[self.rows_B, :, self.at_B] = v[:, :, 0]
        return self.keys[:, :, : self.used], self.values[:, :, : self.used]


@dataclass
class Prefix:
    """One layer's keys and values of the prompts: saved during the prompts' pass, prepended in the answers' pass."""

    rows_B: Tensor | None = None  # which prompt each answer continues; None during the prompts' pass
    keys: Tensor | None = None
    values: Tensor | None = None

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.rows_B is None or self.keys is None or self.values is None:
            self.keys, self.values = k, v
            return k, v
        return torch.cat((self.keys[self.rows_B], k), 2), torch.cat((self.values[self.rows_B], v), 2)


class MLP(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=c.mlp_bias)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=c.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return cast("Tensor", self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_eps)
        self.mlp = MLP(c)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, layer: CacheView | Prefix | None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, layer)
        return x + cast("Tensor", self.mlp(self.post_attention_layernorm(x)))

    def packed(self, x: Tensor, y: Tensor | None, packed: PackedBatch) -> tuple[Tensor, Tensor]:
        from posttrain.models.packed import layer  # the same over packed tokens

        return layer(self, x, y, packed)


class Trunk(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_eps)

    @property
    def blocks(self) -> Iterable[Layer]:
        """The layers, with their type."""
        return cast("Iterable[Layer]", self.layers)


class Decoder(nn.Module):
    """The model: `hidden`, `hidden_shared` and `hidden_packed` for training, `prefill` and `step` for sampling, `logits` for both."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.register_buffer("inv_freq", inverse_frequencies(config), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Decoder:
        """A cast of the model leaves the rotary frequencies in float32: in bf16 position 1000 is off by radians."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.inv_freq = inverse_frequencies(self.config).to(self.lm_head.weight.device)
        return self

    @property
    def width(self) -> int:
        return self.config.hidden_size

    @property
    def head_weight(self) -> Tensor:
        """The head alone: logits are h W^T, so they may be computed in chunks."""
        return self.lm_head.weight

    def embed(self, tokens: Tensor, seen: Mapping[str, Tensor] | None = None) -> Tensor:
        """What the first layer reads, in float32. A decoder that also perceives (pictures, sound) puts it in here: `seen` are
        the observations' streams, stacked over the rows of `tokens`."""
        if seen:
            raise UserError(f"this model reads text alone, but its prompts also carry {', '.join(sorted(seen))}")
        x: Tensor = self.model.embed_tokens(tokens)
        return x.float()

    def hidden(
        self, tokens_BT: Tensor, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None,
        seen: Mapping[str, Tensor] | None = None, embedded: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Hidden states before the head. Segments (packed rows) attend only within themselves; embedded: read in place of the tokens."""
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        mask = None if segments_BT is None else block_mask(segments_BT)
        x = self.embed(tokens_BT, seen) if embedded is None else embedded
        return self._layers(x, positions_BT, mask, [None] * self.config.num_layers)

    def hidden_shared(
        self, contexts_PL: Tensor, lengths_P: Tensor, rows_B: Tensor, actions_BT: Tensor,
        seen: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Hidden states with one pass per prompt for all its answers: after each prompt's last token (P, D), and after each action
        (B, T, D). The gradient of a prompt's states is the sum over its answers.
        """
        prefix = [Prefix() for _ in self.model.layers]
        place_L = torch.arange(contexts_PL.shape[1], device=contexts_PL.device)
        h_PLD = self._layers(self.embed(contexts_PL, seen), place_L.expand_as(contexts_PL), None, prefix)
        for layer in prefix:
            layer.rows_B = rows_B
        starts_B1 = lengths_P[rows_B].unsqueeze(-1)
        T = actions_BT.shape[1]
        causal_TT = torch.ones(T, T, dtype=torch.bool, device=actions_BT.device).tril()
        seen_BTL = (place_L < starts_B1).unsqueeze(1).expand(-1, T, -1)
        mask = torch.cat((seen_BTL, causal_TT.expand(len(rows_B), T, T)), -1).unsqueeze(1)
        places_BT = starts_B1 + torch.arange(T, device=actions_BT.device)
        h_BTD = self._layers(self.embed(actions_BT), places_BT, mask, prefix)
        return h_PLD[torch.arange(len(lengths_P), device=h_PLD.device), lengths_P - 1], h_BTD

    def hidden_packed(self, packed: PackedBatch, recompute: int = 0) -> Tensor:
        """Hidden states of packed tokens (N, D); the first `recompute` layers recompute their activations in backward."""
        angle_ND = packed.positions_N.unsqueeze(-1).float() * self.inv_freq
        packed.rope = (angle_ND.cos(), angle_ND.sin())
        x, y = self.model.embed_tokens(packed.tokens_N).float(), None
        for i, block in enumerate(self.model.blocks):
            recomputed = i < recompute
            x, y = (
                checkpoint(block.packed, x, y, packed, use_reentrant=False)
                if recomputed
                else block.packed(x, y, packed)
            )
        return self.model.norm.add_and_norm(x, y)[1]

    def logits(self, h: Tensor) -> Tensor:
        """In float32: bf16 resolves logits around 20 only to 0.06."""
        return matmul_fp32(h, self.lm_head.weight)

    def prefill(
        self, tokens_BT: Tensor, lengths_B: Tensor, slots: int, seen: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, KVCache]:
        """Right-padded prompts; returns the hidden state after each prompt's last token, and the cache."""
        cache = KVCache(self.config, tokens_BT.shape[0], slots, self.lm_head.weight)
        positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        h_BTD = self._layers(self.embed(tokens_BT, seen), positions_BT, None, cache.views(None))
        cache.lengths_B = lengths_B.clone()
        rows_B = torch.arange(tokens_BT.shape[0], device=tokens_BT.device)
        return h_BTD[rows_B, lengths_B - 1], cache

    def step(self, tokens_B: Tensor, cache: KVCache) -> Tensor:
        """One more token per row; returns its hidden state."""
        at_B = cache.lengths_B
        used = int(at_B.max()) + 1
        mask = (torch.arange(used, device=at_B.device) <= at_B.unsqueeze(-1))[:, None, None, :]
        h_BTD = self._layers(self.embed(tokens_B.unsqueeze(-1)), at_B.unsqueeze(-1), mask, cache.views(at_B, used))
        cache.lengths_B = at_B + 1
        return h_BTD[:, 0]

    def _layers(
        self, x: Tensor, positions: Tensor, mask: Tensor | None, views: Sequence[CacheView | Prefix | None]
    ) -> Tensor:
        """All layers; a view saves a layer's keys and values, or prepends earlier ones."""
        rope = self.rope(positions)
        for block, view in zip(self.model.layers, views, strict=True):
            x = block(x, rope, mask, view)
        h: Tensor = self.model.norm(x)
        return h

    def rope(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions_BT[:, None, :, None].float() * self.inv_freq
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions, half-split layout: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)."""
    cos, sin = rope
    x1, x2 = x.chunk(2, -1)
    return (x * cos + torch.cat((-x2, x1), -1) * sin).to(x.dtype)
