"""The trainer's weights laid out for inference: q, k and v in one product, gate and up in another.

The copies are refreshed from the live parameters whenever those have changed, so there is nothing else to synchronise.
Adapters (LoRA) are added into these copies, never into the weights that are trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from posttrain.inference.attention import attend
from posttrain.inference.pages import Pages
from posttrain.inference.products import Placement, QKVTransform, add_norm, embed_norm, rotate_and_store, split_k_matmul
from posttrain.models.decoder import Decoder, Layer, RMSNorm
from posttrain.models.elementwise import silu_and_mul
from posttrain.models.four_bit import FourBit
from posttrain.models.lora import LoRALinear
from posttrain.models.packed import cumulative, varlen

Linear = nn.Linear | FourBit


@dataclass
class FusedLayer:
    """One layer's matrices and norms; biases are None where the model has none."""

    norm: Tensor  # before attention
    qkv: Tensor
    transform: QKVTransform
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor  # before the MLP
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None

    def copies(self) -> Iterator[Tensor | None]:
        """The tensors that are (or may be) copies of the model's own."""
        yield from (self.qkv, self.transform.bias, self.gate_up, self.gate_up_bias, self.out, self.down)


class Fused:
    """A decoder over the paged cache: prefill of sequences, and decode steps of one token per slot."""

    def __init__(self, model: Decoder, length: int) -> None:
        self.model, c = model, model.config
        self.eps, self.wide = c.rms_eps, model.lm_head.weight.is_cuda
        angle = torch.arange(length, device=model.inv_freq.device)[:, None].float() * model.inv_freq
        self.rope = (angle.cos().contiguous(), angle.sin().contiguous())
        self.layers = [self._fuse(block) for block in model.model.blocks]
        self.copied = self._signature()  # of the weights that the copies hold

    def _signature(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self.model.parameters()]

    @torch.no_grad()
    def refresh(self) -> bool:
        """Copy the live weights in place if they have changed (captured graphs keep reading these addresses)."""
        now = self._signature()
        if now == self.copied:
            return False
        for mine, block in zip(self.layers, self.model.model.blocks, strict=True):
            for old, new in zip(mine.copies(), self._fuse(block).copies(), strict=True):
                if old is not None and new is not None and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        self.copied = now
        return True

    def decode_step(self, token_S: Tensor, pages: Pages, place: Placement, slots_per_program: int = 1) -> Tensor:
        """One token per slot at its position; returns the logits (S, V) in float32. One attention program serves slots_per_program."""
        x, h = embed_norm(token_S, self.model.model.embed_tokens.weight, self.layers[0].norm, self.eps)
        for i, layer in enumerate(self.layers):
            k, v = pages.keys[i], pages.values[i]
            h = self._after_attention(
                i, x, attend(h @ layer.qkv.T, k, v, place, layer.transform, slots_per_program).flatten(1)
            )
        return self.model.logits(h)

    def _after_attention(self, i: int, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of layer i, added to the residual stream in place; returns the normed input of the next layer, or of the head."""
        layer = self.layers[i]
        h = add_norm(x, attended @ layer.out.T, layer.out_bias, layer.mlp_norm, self.eps)
        y = split_k_matmul(silu_and_mul(h @ layer.gate_up.T, layer.gate_up_bias), layer.down)
        next_norm = self.layers[i + 1].norm if i + 1 < len(self.layers) else self.model.model.norm.weight.data
        return add_norm(x, y, layer.down_bias, next_norm, self.eps)

    def prefill(
        self, tokens_PL: Tensor, count_P: Tensor, table_PM: Tensor, pages: Pages, past_P: Tensor | None = None, used: int = 0
    ) -> None:  # fmt: skip
        """Write keys and values of `count` new tokens of each sequence (right-padded) into its pages, after the `past` ones that they
        hold already; `used` is the longest sequence's length after that, 0 where none has a past."""
        (P, L), device = tokens_PL.shape, tokens_PL.device
        positions_PL = torch.arange(L, device=device).expand(P, L)
        if past_P is not None:
            positions_PL, count_P = positions_PL + past_P.unsqueeze(-1), count_P + past_P
        table_row_PL = torch.where(
            positions_PL < count_P.unsqueeze(-1), torch.arange(P, device=device).unsqueeze(-1), P
        )
        at_N = positions_PL.clamp_max(len(self.rope[0]) - 1).flatten()  # padding may lie beyond the longest sequence
        null_page = torch.zeros_like(table_PM[:1])  # padding goes to the null page
        place = Placement(torch.cat((table_PM, null_page)), torch.zeros_like(at_N), at_N, table_row_PL.flatten())
        past = self._past(table_PM, positions_PL, past_P, pages, used) if used and past_P is not None else None
        x, h = embed_norm(tokens_PL.flatten(), self.model.model.embed_tokens.weight, self.layers[0].norm, self.eps)
        for i, layer in enumerate(self.layers):
            keys, values = pages.keys[i], pages.values[i]
            stored = rotate_and_store(h @ layer.qkv.T, keys, values, place, layer.transform)
            q, k, v = (y.unflatten(0, (P, L)) for y in stored)
            if i + 1 < len(self.layers):  # of the last layer only keys and values are needed
                attended = causal_attention(q, k, v) if past is None else past.attend(q, keys, values)
                h = self._after_attention(i, x, attended.flatten(0, 1))

    def _past(
        self, table_PM: Tensor, positions_PL: Tensor, past_P: Tensor, pages: Pages, used: int
    ) -> Past | PackedPast:
        c, device, columns = self.model.config, table_PM.device, pages.needed(used)
        if self.wide and flash_fits(pages.keys):
            return PackedPast.of(table_PM[:, :columns], past_P, positions_PL.shape[1], pages.size)
        heads, length = (c.num_heads, columns * pages.size) if self.wide else (c.num_kv_heads, used)
        head_H = torch.arange(heads, device=device) // (heads // c.num_kv_heads)
        rows_PHM = table_PM[:, :columns].long().unsqueeze(1) * c.num_kv_heads + head_H.unsqueeze(-1)
        mask = (torch.arange(length, device=device) <= positions_PL.unsqueeze(-1)).unsqueeze(1)
        if self.wide:
            mask = torch.zeros_like(mask, dtype=pages.keys.dtype).masked_fill_(~mask, -torch.inf)
        return Past(rows_PHM, mask)

    def _fuse(self, block: Layer) -> FusedLayer:
        a, m = block.self_attn, block.mlp
        norms = None
        if isinstance(a.q_norm, RMSNorm) and isinstance(a.k_norm, RMSNorm):
            norms = (a.q_norm.weight.data, a.k_norm.weight.data)
        qkv: list[Linear] = [a.q_proj, a.k_proj, a.v_proj]
        up: list[Linear] = [m.gate_proj, m.up_proj]
        return FusedLayer(
            block.input_layernorm.weight.data,
            _concat_weights(qkv),
            QKVTransform(_concat_biases(qkv), norms, self.rope, self.eps),
            _weight(a.o_proj),
            None if a.o_proj.bias is None else a.o_proj.bias.data,
            block.post_attention_layernorm.weight.data,
            _concat_weights(up),
            _concat_biases(up),
            _weight(m.down_proj),
            None if m.down_proj.bias is None else m.down_proj.bias.data,
        )


@dataclass
class Past:
    """What new tokens look at where their sequences have a past. `wide`, for a GPU: its fast kernel wants a key head for each query head,
    whole pages, and the mask as numbers, which would be made anew in every layer otherwise."""

    rows_PHM: Tensor  # where the pages of each head of a sequence stand
    mask_P1LT: Tensor

    def attend(self, q_PLHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention of new tokens over all of their sequences; returns (P, L, H D)."""
        q, k, v = q_PLHD.transpose(1, 2), self._heads(keys), self._heads(values)
        with _masked() if q.is_cuda else nullcontext():
            shared = q.shape[1] != k.shape[1]
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask_P1LT, enable_gqa=shared)
        return out.transpose(1, 2).flatten(2)

    def _heads(self, pages: Tensor) -> Tensor:
        """Their pages end to end (P, H, T, D)."""
        flat, length = pages.flatten(0, 1), self.mask_P1LT.shape[-1]
        if self.rows_PHM.shape[-1] == 1:  # one page holds more than is read of it
            flat = flat[:, :length]
        return flat[self.rows_PHM].flatten(2, 3)[:, :, :length]


@dataclass
class PackedPast:
    """The same for a GPU in half precision: each sequence's keys and values are gathered end to end and read by flash attention, no longer
    than they are. A sequence has L queries; those that are padding look at what lies behind it, and nobody looks at them."""

    page_K: Tensor
    place_K: Tensor  # within the page
    cu_q: Tensor
    cu_k: Tensor
    longest: int

    @staticmethod
    def of(table_PM: Tensor, past_P: Tensor, L: int, size: int) -> PackedPast:
        (P, M), device = table_PM.shape, table_PM.device
        longest = M * size + L
        cu_k = cumulative(past_P + L)
        at_K = torch.arange(
            P * longest, device=device, dtype=cu_k.dtype
        )  # as many as there can be, whatever the pasts are
        row_K = torch.searchsorted(cu_k[1:], at_K, right=True).clamp_max(P - 1)
        position_K = at_K - cu_k[row_K]
        page_K = table_PM[row_K, (position_K // size).clamp_max(M - 1)].long()
        return PackedPast(
            page_K, position_K % size, L * torch.arange(P + 1, device=device, dtype=torch.int32), cu_k, longest
        )

    def attend(self, q_PLHD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention of new tokens over all of their sequences; returns (P, L, H D)."""
        k, v = (x[self.page_K, :, self.place_K] for x in (keys, values))
        out = varlen(q_PLHD.flatten(0, 1), k, v, self.cu_q, self.cu_k, q_PLHD.shape[1], self.longest)
        return out.view(*q_PLHD.shape[:2], -1)


def flash_fits(keys: Tensor) -> bool:
    """Whether torch's flash attention takes such heads on this card; elsewhere a past is read through a mask."""
    D = keys.shape[-1]
    return (
        keys.element_size() == 2 and D % 8 == 0 and D <= 256 and torch.cuda.get_device_capability(keys.device) >= (8, 0)
    )


def causal_attention(q_PLHD: Tensor, k_PLHD: Tensor, v_PLHD: Tensor) -> Tensor:
    """Causal attention of new tokens over themselves; returns (P, L, H D)."""
    q, k, v = (x.transpose(1, 2) for x in (q_PLHD, k_PLHD, v_PLHD))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).flatten(2)


def _masked() -> AbstractContextManager[None]:
    """Not cuDNN's attention: a call with a mask took 1.3 ms of the host there, 37 ms for every prefill after a past (135M shape)."""
    found: AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return found


def _weight(linear: Linear) -> Tensor:
    """A layer's matrix with its adapter added, the matrix itself where it has none."""
    return linear.merged() if isinstance(linear, (LoRALinear, FourBit)) else linear.weight.data


def _concat_weights(linears: list[Linear]) -> Tensor:
    return torch.cat([_weight(layer) for layer in linears])


def _concat_biases(linears: list[Linear]) -> Tensor | None:
    return None if linears[0].bias is None else torch.cat([layer.bias.data for layer in linears])
