"""AdamW whose memory of the past takes two bytes a parameter instead of eight."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core.registry import optimiser

_BLOCK = 256  # values that share a scale
_SMALL = 4096  # tensors with fewer values keep float32 moments: they are few, and they matter
_PIECE = 1 << 22  # values that are unpacked at a time; whole blocks
_RANGE = {
    True: 6.0,
    False: 7.0,
}  # powers of ten below a block's largest value that have levels: of m (signed), of sqrt(v)


@optimiser(paper="arXiv:2110.02861")
def adamw_8bit(
    named: Iterable[tuple[str, nn.Parameter]], lr: float = 1e-6, betas: tuple[float, float] = (0.9, 0.95),
    weight_decay: float = 0.0, eps: float = 1e-8,
) -> torch.optim.Optimizer:  # fmt: skip
    """AdamW, 8 bit: both moments as bytes, in blocks of 256 with a scale each; the update itself is computed in float32.

    m and sqrt(v) are kept as level x largest of the block, on levels of equal ratio. They are rounded at random to one of the two
    nearest levels, unbiased, with draws that belong to (step, tensor): to the nearest, moments that change by less than half a
    level a step would never change. sqrt(v), not v: it needs half the range, and it is never rounded to 0.
    """
    params = [p for _, p in named]
    matrices = {"params": [p for p in params if p.dim() >= 2], "weight_decay": weight_decay}
    vectors = {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0}
    return AdamW8bit([g for g in (matrices, vectors) if g["params"]], {"lr": lr, "betas": betas, "eps": eps})


class AdamW8bit(torch.optim.Optimizer):
    """The state of a parameter: `m8`, `s8` (bytes), `m_scale`, `s_scale` (one per block), `step`; of a small one `m`, `s`, `step`."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        place = 0
        for group in self.param_groups:
            for p in group["params"]:
                place += 1
                if p.grad is not None:
                    self._one(p, group, place)

    def _one(self, p: Tensor, group: dict[str, Any], place: int) -> None:
        state, grad = self.state[p], p.grad
        assert grad is not None
        state["step"] = state.get("step", torch.zeros(())) + 1
        t = int(state["step"])
        flat, g = p.reshape(-1), grad.float().reshape(-1)
        if p.numel() < _SMALL:
            m, s = (state.get(k, torch.zeros_like(g)) for k in ("m", "s"))
            state["m"], state["s"] = update(flat, g, m, s, t, group)
        else:
            self._in_pieces(flat, g, state, t, group, place)
        if not p.is_contiguous():
            p.copy_(flat.view(p.shape))

    def _in_pieces(
        self, flat: Tensor, g: Tensor, state: dict[str, Tensor], t: int, group: dict[str, Any], place: int
    ) -> None:
        """A large tensor piece by piece, so that what is unpacked at a time stays small."""
        n, blocks = flat.numel(), -(-flat.numel() // _BLOCK)
        for k in ("m", "s"):
            state.setdefault(f"{k}8", torch.zeros(n, dtype=torch.uint8, device=flat.device))
            state.setdefault(f"{k}_scale", torch.zeros(blocks, device=flat.device))
        draw = torch.Generator(device=flat.device).manual_seed((t << 20) + place)
        for a in range(0, n, _PIECE):
            piece, some = slice(a, a + _PIECE), slice(a // _BLOCK, (a + _PIECE) // _BLOCK)
            m = unpack(state["m8"][piece], state["m_scale"][some], True)
            s = unpack(state["s8"][piece], state["s_scale"][some], False)
            m, s = update(flat[piece], g[piece], m, s, t, group)
            state["m8"][piece], state["m_scale"][some] = pack(m, True, draw)
            state["s8"][piece], state["s_scale"][some] = pack(s, False, draw)


def update(p: Tensor, g: Tensor, m: Tensor, s: Tensor, t: int, group: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """AdamW in place; returns the new m and s = sqrt(v)."""
    b1, b2 = group["betas"]
    m = m * b1 + g * (1 - b1)
    v = s.square().mul_(b2).addcmul_(g, g, value=1 - b2)
    p.mul_(1 - group["lr"] * group["weight_decay"])
    p.sub_((group["lr"] / (1 - b1**t) * m / ((v / (1 - b2**t)).sqrt() + group["eps"])).to(p.dtype))
    return m, v.sqrt_()


@lru_cache(maxsize=8)
def levels(signed: bool, device: torch.device) -> Tensor:
    """0, and from 10^-range to 1 in equal ratios: 128 with a sign, 256 without."""
    n = 127 if signed else 255
    spaced = torch.logspace(-_RANGE[signed], 0.0, n, dtype=torch.float64).float()
    return torch.cat([torch.zeros(1), spaced]).to(device)


def pack(x: Tensor, signed: bool, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Bytes, and the largest absolute value of each block; the bytes of a signed x are the level + 128 x its sign bit."""
    flat = torch.nn.functional.pad(x, (0, -x.numel() % _BLOCK)).view(-1, _BLOCK)
    scale = flat.abs().amax(1)
    table = levels(signed, x.device)
    y = flat.abs() / scale.clamp_min(torch.finfo(torch.float32).tiny).unsqueeze(1)
    above = torch.bucketize(y, table).clamp_max(len(table) - 1)  # table[above - 1] < y <= table[above]
    below = (above - 1).clamp_min(0)
    low, high = table[below], table[above]
    share = (y - low) / (high - low).clamp_min(torch.finfo(torch.float32).tiny)
    code = torch.where(torch.rand(y.shape, generator=draw, device=y.device) < share, above, below)
    code = code + 128 * (flat < 0) if signed else torch.where((code == 0) & (y > 0), 1, code)
    return code.to(torch.uint8).view(-1)[: x.numel()].clone(), scale


def unpack(code: Tensor, scale: Tensor, signed: bool) -> Tensor:
    """The values that the bytes stand for."""
    index = code.long()
    x = levels(signed, code.device)[index & 127 if signed else index]
    if signed:
        x = torch.where(index >= 128, -x, x)
    return x * scale.repeat_interleave(_BLOCK)[: code.numel()]
