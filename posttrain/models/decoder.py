"""One compact dense decoder (Llama, SmolLM2, Mistral, Qwen2/2.5, Qwen3) for training and for sampling.

Parameters carry the names of Hugging Face checkpoints, so loading and saving a folder is a plain copy of tensors.
Rows are right-padded: causality alone keeps real tokens from seeing padding. The residual stream and the logits have
float32 whatever the weights have: in bf16 it is their rounding that sets sampler and trainer apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posttrain.core.errors import UserError
from posttrain.models.elementwise import added_normed, normed
from posttrain.models.likelihood import product
from posttrain.models.shape import DecoderConfig, inverse_frequencies

if TYPE_CHECKING:
    from posttrain.models.packed import Stream


class KVCache:
    """Keys and values of every layer in fixed slots (B, H, S, D); `lengths_B` says how many each row has filled."""

    def __init__(self, config: DecoderConfig, rows: int, slots: int, like: Tensor) -> None:
        shape = (rows, config.num_kv_heads, slots, config.head_dim)
        self.keys = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(config.num_layers)]
        self.values = [torch.zeros_like(k) for k in self.keys]
        self.lengths_B = torch.zeros(rows, dtype=torch.long, device=like.device)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row named twice is forked (a prompt's answers share its prefill)."""
        self.keys = [k[rows] for k in self.keys]
        self.values = [v[rows] for v in self.values]
        self.lengths_B = self.lengths_B[rows]

    def stores(self, at_B: Tensor | None, used: int = 0) -> list[Slots]:
        """One layer's view each; at_B is the slot of each row's new token, None while filling from slot 0."""
        rows_B = torch.arange(self.lengths_B.shape[0], device=self.lengths_B.device)
        return [Slots(k, v, rows_B, at_B, used) for k, v in zip(self.keys, self.values, strict=True)]


class RMSNorm(nn.Module):
    """In the type of its weight, whatever the type of the states."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, self.weight, self.eps)

    def after(self, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """x + y and its norm."""
        return added_normed(x, y, self.weight, self.eps)


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
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, layer: Slots | Prefix | None
    ) -> Tensor:
        B, T, _ = x.shape
        q = rotate(self.q_norm(self.q_proj(x).view(B, T, self.heads, self.head_dim)).transpose(1, 2), rope)
        k = rotate(self.k_norm(self.k_proj(x).view(B, T, self.kv_heads, self.head_dim)).transpose(1, 2), rope)
        v = self.v_proj(x).view(B, T, self.kv_heads, self.head_dim).transpose(1, 2)
        if layer is not None:
            k, v = layer.write(k, v)
        shared = self.heads != self.kv_heads
        if (
            shared and mask is not None and q.is_cuda
        ):  # with a mask the fast kernels want a key head for every query head
            k, v = (x.repeat_interleave(self.heads // self.kv_heads, 1) for x in (k, v))
            shared = False
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None and T > 1, enable_gqa=shared
        )
        return self.o_proj(out.transpose(1, 2).reshape(B, T, -1))


@dataclass
class Slots:
    """One layer's view of the cache during one step: where the new tokens go and how far to look back."""

    keys: Tensor
    values: Tensor
    rows_B: Tensor
    at_B: Tensor | None  # slot of the single new token of each row; None while filling from slot 0
    used: int

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        if self.at_B is None:
            self.keys[:, :, : k.shape[2]], self.values[:, :, : v.shape[2]] = k, v
            return k, v
        self.keys[self.rows_B, :, self.at_B] = k[:, :, 0]
        self.values[self.rows_B, :, self.at_B] = v[:, :, 0]
        return self.keys[:, :, : self.used], self.values[:, :, : self.used]


@dataclass
class Prefix:
    """One layer's keys and values of the prompts: kept while they are read, put before those of the answers after."""

    rows_B: Tensor | None = None  # which prompt each answer continues; None while the prompts are read
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
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_eps)
        self.mlp = MLP(c)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor | None, layer: Slots | Prefix | None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c: DecoderConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_layers))
        self.norm = RMSNorm(c.hidden_size, c.rms_eps)


class Decoder(nn.Module):
    """The model: `hidden` and `continued` for training, `prefill` and `step` for sampling, `logits` for both."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self.register_buffer("inv_freq", inverse_frequencies(config), persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> Decoder:
        """A cast of the model leaves the rotary frequencies in float32: in bf16, position 1000 is off by radians."""
        super()._apply(fn, recurse)
        self.inv_freq = inverse_frequencies(self.config).to(self.lm_head.weight.device)
        return self

    @property
    def width(self) -> int:
        return self.config.hidden_size

    @property
    def head_weight(self) -> Tensor:
        """The whole head: logits are h W^T and nothing else, so they may be computed in chunks."""
        return self.lm_head.weight

    def embed(self, tokens: Tensor, seen: Mapping[str, Tensor] | None = None) -> Tensor:
        """What the first layer reads, in float32. A decoder that also perceives (pictures, sound) puts it in here: `seen` are
        the observations' streams, stacked over the rows of `tokens`."""
        if seen:
            raise UserError(f"this model reads text alone, but its prompts also carry {', '.join(sorted(seen))}")
        return self.model.embed_tokens(tokens).float()

    def hidden(
        self, tokens_BT: Tensor, positions_BT: Tensor | None = None, segments_BT: Tensor | None = None,
        seen: Mapping[str, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """States before the head. Segments (packed rows) attend only within themselves."""
        if positions_BT is None:
            positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        mask = None if segments_BT is None else block_mask(segments_BT)
        return self._layers(self.embed(tokens_BT, seen), positions_BT, mask, [None] * self.config.num_layers)

    def continued(
        self, contexts_PL: Tensor, lengths_P: Tensor, rows_B: Tensor, actions_BT: Tensor,
        seen: Mapping[str, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """States of prompts read once and of the answers that continue them: after each prompt's last token (P, D),
        and after each action (B, T, D). The gradient of a prompt's states is the sum over its answers.
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

    def streamed(self, stream: Stream, recompute: int = 0) -> Tensor:
        """States of tokens end to end (N, D); the first layers compute their activations again in backward."""
        from posttrain.models.packed import layer

        angle_ND = stream.positions_N.unsqueeze(-1).float() * self.inv_freq
        stream.rope = (angle_ND.cos(), angle_ND.sin())
        x, y = self.model.embed_tokens(stream.tokens_N).float(), None
        for i, block in enumerate(self.model.layers):
            again = i < recompute
            x, y = checkpoint(layer, block, x, y, stream, use_reentrant=False) if again else layer(block, x, y, stream)
        return self.model.norm.after(x, y)[1]

    def logits(self, h: Tensor) -> Tensor:
        """In float32: bf16 knows logits around 20 only to 0.06."""
        return product(h, self.lm_head.weight)

    def prefill(
        self, tokens_BT: Tensor, lengths_B: Tensor, slots: int, seen: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, KVCache]:
        """Read right-padded prompts; returns the state after each prompt's last token, and the cache."""
        cache = KVCache(self.config, tokens_BT.shape[0], slots, self.lm_head.weight)
        positions_BT = torch.arange(tokens_BT.shape[1], device=tokens_BT.device).expand_as(tokens_BT)
        h_BTD = self._layers(self.embed(tokens_BT, seen), positions_BT, None, cache.stores(None))
        cache.lengths_B = lengths_B.clone()
        rows_B = torch.arange(tokens_BT.shape[0], device=tokens_BT.device)
        return h_BTD[rows_B, lengths_B - 1], cache

    def step(self, tokens_B: Tensor, cache: KVCache) -> Tensor:
        """One more token a row; returns its state."""
        at_B = cache.lengths_B
        used = int(at_B.max()) + 1
        mask = (torch.arange(used, device=at_B.device) <= at_B.unsqueeze(-1))[:, None, None, :]
        h_BTD = self._layers(self.embed(tokens_B.unsqueeze(-1)), at_B.unsqueeze(-1), mask, cache.stores(at_B, used))
        cache.lengths_B = at_B + 1
        return h_BTD[:, 0]

    def _layers(
        self, x: Tensor, positions: Tensor, mask: Tensor | None, stores: Sequence[Slots | Prefix | None]
    ) -> Tensor:
        """Every layer in turn; a store keeps a layer's keys and values, or puts earlier ones before them."""
        rope = self.rope(positions)
        for block, store in zip(self.model.layers, stores, strict=True):
            x = block(x, rope, mask, store)
        return self.model.norm(x)

    def rope(self, positions_BT: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions_BT[:, None, :, None].float() * self.inv_freq
        angle = torch.cat((angle, angle), -1)
        return angle.cos(), angle.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions, half-split layout: (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin)."""
    cos, sin = rope
    x1, x2 = x.chunk(2, -1)
    return (x * cos + torch.cat((-x2, x1), -1) * sin).to(x.dtype)


def block_mask(segments_BT: Tensor) -> Tensor:
    """(B, 1, T, T) bool: causal, and only within the same segment (-1 is padding and sees itself)."""
    T = segments_BT.shape[1]
    same = segments_BT[:, :, None] == segments_BT[:, None, :]
    causal = torch.ones(T, T, dtype=torch.bool, device=segments_BT.device).tril()
    return (same & causal)[:, None]
