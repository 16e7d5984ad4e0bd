"""Packed rollouts without padding, each prompt once: the layout of training on a GPU.

Tokens are the distinct prompts, then the answers. An answer's queries attend to its prompt's keys and its own: keys and values
(small next to hidden states) are copied for each answer, hidden states are not. Attention is torch's own varlen flash kernel. The
operations between the products are few kernels, because on a modern GPU small models wait for the host to launch them.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posttrain.models.decoder import Decoder, Layer, RMSNorm
from posttrain.models.elementwise import swiglu
from posttrain.models.fused_linear import fused_linear
from posttrain.models.layout import Rows
from posttrain.models.rotate_and_gather import rotate_and_gather


@dataclass
class PackedBatch:
    """N tokens end to end; sequence i has queries cu_q[i]..cu_q[i+1] and keys cu_k[i]..cu_k[i+1] of source_K."""

    tokens_N: Tensor
    positions_N: Tensor  # within their own sequence
    source_K: Tensor  # which token each key belongs to
    order_K: Tensor  # the keys by token: those of token n are order_K[first_N[n] : first_N[n + 1]]
    first_N: Tensor
    cu_q: Tensor  # cumulative numbers of queries
    cu_k: Tensor  # cumulative numbers of keys
    longest_q: int  # queries of the longest sequence
    longest_k: int  # keys of the longest sequence
    before_BT: Tensor  # the token whose hidden state chose each action
    last_B: Tensor  # the token of each row's last action
    rope: tuple[Tensor, Tensor] | None = None  # cos and sin (N, D / 2) in fp32
    masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # of sequences, where all layers need them

    @staticmethod
    def of(rows: Rows) -> PackedBatch:
        device, B = rows.tokens_BL.device, len(rows.tokens_BL)
        start_P, count_B = rows.before_BT[rows.first_P, 0] + 1, rows.real_BT.sum(-1)
        start_B = start_P[rows.prompt_B]
        position_S, position_T = (torch.arange(int(n), device=device) for n in (start_P.max(), rows.real_BT.shape[1]))
        real_PS = position_S < start_P.unsqueeze(-1)
        offset_P = start_P.cumsum(0) - start_P  # first token of each prompt
        offset_B = start_P.sum() + count_B.cumsum(0) - count_B  # and of each answer
        context_PS = rows.tokens_BL[rows.first_P, : len(position_S)]
        tokens_N = torch.cat((context_PS[real_PS], rows.actions_BT[rows.real_BT]))
        answer_BT = start_B.unsqueeze(-1) + position_T
        positions_N = torch.cat((position_S.expand_as(real_PS)[real_PS], answer_BT[rows.real_BT]))
        own_BT = offset_B.unsqueeze(-1) + position_T
        key_BK = torch.cat(((offset_P[rows.prompt_B].unsqueeze(-1) + position_S), own_BT), 1)
        seen_BK = torch.cat((real_PS[rows.prompt_B], rows.real_BT), 1)
        source_K = torch.cat((torch.arange(int(start_P.sum()), device=device), key_BK[seen_BK]))
        before_BT = torch.cat(((offset_P + start_P - 1)[rows.prompt_B].unsqueeze(-1), own_BT[:, :-1]), 1)
        lengths_q, lengths_k = torch.cat((start_P, count_B)), torch.cat((start_P, start_B + count_B))
        longest_q, longest_k = torch.stack((lengths_q.max(), lengths_k.max())).tolist()
        last_B = offset_B + count_B - 1
        first_N = cumulative(torch.bincount(source_K, minlength=len(tokens_N)))
        return PackedBatch(
            tokens_N, positions_N, source_K, source_K.argsort(stable=True), first_N, cumulative(lengths_q), cumulative(lengths_k), longest_q, longest_k,
            before_BT.clamp_max(len(tokens_N) - 1).view(B, -1), last_B,
        )  # fmt: skip

    def attention(self, qkv_NHD: Tensor, kv_heads: int) -> Tensor:
        """From the queries, keys and values of all tokens, before they are rotated, what each token reads (N, H, D)."""
        return self.attend(*rotate_and_gather(qkv_NHD, kv_heads, self))

    def attend(self, q_NHD: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention within each sequence; a sequence's queries are the last of its keys (K, H_kv, D)."""
        if not q_NHD.is_cuda:
            return self.attend_plain(q_NHD, k, v)
        return varlen(q_NHD, k, v, self.cu_q, self.cu_k, self.longest_q, self.longest_k)

    def attend_plain(self, q_NHD: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The same, one sequence after another. Torch's fused kernel for the CPU, which keeps no matrix of all pairs, wants a dimension of
        rows and one key head per query head."""
        cu_q, cu_k, out = self.cu_q.tolist(), self.cu_k.tolist(), []
        each = q_NHD.shape[1] // k.shape[1]
        for i in range(len(cu_q) - 1):
            q = q_NHD[cu_q[i] : cu_q[i + 1]].transpose(0, 1).unsqueeze(0)
            mine = (x[cu_k[i] : cu_k[i + 1]].transpose(0, 1).unsqueeze(0) for x in (k, v))
            mine_k, mine_v = (x.repeat_interleave(each, 1) for x in mine)
            seen = self._mask(q.shape[2], mine_k.shape[2], q)
            out.append(F.scaled_dot_product_attention(q, mine_k, mine_v, seen).squeeze(0).transpose(0, 1))
        return torch.cat(out)

    def _mask(self, T: int, K: int, like: Tensor) -> Tensor:
        """0 where the last T of K tokens may look, -inf elsewhere."""
        if (T, K) not in self.masks:
            self.masks[T, K] = like.new_full((T, K), -torch.inf).triu(K - T + 1)
        return self.masks[T, K]


def layer(block: Layer, x_NC: Tensor, y_NC: Tensor | None, packed: PackedBatch) -> tuple[Tensor, Tensor]:
    """One decoder layer over packed tokens: takes the residual stream x and what is still to be added to it, y; returns the same."""
    a, m = block.self_attn, block.mlp
    x_NC, h_NC = block.input_layernorm.add_and_norm(x_NC, y_NC)
    qkv = fused_linear((a.q_proj, a.k_proj, a.v_proj), h_NC).unflatten(-1, (-1, a.head_dim))
    if isinstance(a.q_norm, RMSNorm) and isinstance(a.k_norm, RMSNorm):
        q, k, v = qkv.split((a.heads, a.kv_heads, a.kv_heads), 1)
        qkv = torch.cat((a.q_norm(q), a.k_norm(k), v), 1)
    y_NC = a.o_proj(packed.attention(qkv, a.kv_heads).flatten(1))
    x_NC, h_NC = block.post_attention_layernorm.add_and_norm(x_NC, y_NC)
    return x_NC, m.down_proj(swiglu(fused_linear((m.gate_proj, m.up_proj), h_NC)))


def varlen(q_NHD: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest_q: int, longest_k: int) -> Tensor:
    """Torch's own kernel of flash attention over sequences end to end, on a GPU in half precision: causal, and a sequence's queries are the
    last of its keys."""
    from torch.nn.attention.varlen import varlen_attn

    out = varlen_attn(q_NHD, k, v, cu_q, cu_k, longest_q, longest_k, **_varlen_options())
    assert isinstance(out, Tensor)
    return out


@cache
def _varlen_options() -> dict[str, Any]:
    """The options that ask this version of torch for causal attention with grouped key heads; 2.11 has no option for the latter."""
    from torch.nn.attention.varlen import varlen_attn

    known = inspect.signature(varlen_attn).parameters
    causal: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return causal | ({"enable_gqa": True} if "enable_gqa" in known else {})


def cumulative(lengths: Tensor) -> Tensor:
    return F.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)


def layers_to_recompute(model: Decoder, tokens: int, keys: int = 0) -> int:
    """How many layers must recompute their activations in backward, so that the other layers' fit into the free memory. keys: those that
    the queries of these tokens read, where they are more than the tokens."""
    c = model.config
    wide, narrow = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    more = 2 * 2 * narrow * max(0, keys - tokens) / tokens  # bytes/token in bf16
    kept = 2 * (6 * c.hidden_size + 2 * wide + 3 * c.intermediate_size + 2 * narrow) + more  # as measured, within 1%
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    room = 0.8 * free - 6 * (1 << 29)  # the head's chunks need memory too
    over = tokens * kept * c.num_layers - room
    each = tokens * (
        kept - 6 * c.hidden_size
    )  # its input stays: the stream in fp32, and what is still to be added in bf16
    return max(0, min(c.num_layers, -int(-over // each)))
