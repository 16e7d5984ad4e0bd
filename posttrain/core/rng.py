"""Randomness that belongs to identity, not to order.

Every draw is a hash of who asks for it (seed, step, prompt id, sample index, position), so the same rollout comes out
whatever the batch, the slot, the worker or the machine. There is no generator state to save.
"""

from __future__ import annotations

import hashlib
import random

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX2 = -7723592293110705685  # 0x94D049BB133111EB


def key(*identity: object) -> int:
    """A signed 64-bit key of an identity: `key(seed, step, prompt.id, index)`."""
    digest = hashlib.blake2b("\x1f".join(map(repr, identity)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniform(keys: Tensor, position: Tensor | int) -> Tensor:
    """One float32 in [0, 1) for each (key, position): splitmix64 of key + golden * position."""
    z = keys + _GOLDEN * (torch.as_tensor(position, device=keys.device, dtype=torch.int64) + 1)
    z = (z ^ _shift(z, 30)) * _MIX1
    z = (z ^ _shift(z, 27)) * _MIX2
    z = z ^ _shift(z, 31)
    return _shift(z, 40).to(torch.float32) * (1.0 / (1 << 24))


def normal(keys: Tensor, position: Tensor | int, size: int) -> Tensor:
    """`size` standard normals for each (key, position): Phi^-1 of as many uniforms, in float32."""
    places = torch.as_tensor(position, device=keys.device).unsqueeze(-1) * size + torch.arange(size, device=keys.device)
    u = uniform(keys.unsqueeze(-1), places) + 2.0**-25  # the middle of its 2^-24, so never 0
    u = u.clamp_max(1 - 2.0**-24)  # the last middle rounds up to 1, whose normal is infinite
    return torch.erfinv(2 * u - 1) * 2**0.5


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's >> keeps the sign, so the copied sign bits are masked off."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def pick(logits_BV: Tensor, u_B: Tensor) -> Tensor:
    """Inverse-CDF sampling: the first token of positive probability whose cumulative probability exceeds u.

    A sum in parallel (CUDA) need not be monotone to the last bit, hence the first match and not a binary search.
    """
    p_BV = torch.softmax(logits_BV.float(), -1)
    cdf_BV = p_BV.cumsum(-1).masked_fill_(p_BV == 0, 0.0)
    target_B = u_B * cdf_BV.amax(-1)  # the sum is 1 up to rounding; u < 1 keeps the target below it
    return (cdf_BV > target_B.unsqueeze(-1)).to(torch.uint8).argmax(-1)


def python(*identity: object) -> random.Random:
    """A Python generator seeded by identity, for data and task makers."""
    return random.Random(key(*identity))


def torch_generator(*identity: object) -> torch.Generator:
    """A CPU torch generator seeded by identity, for initial weights and permutations."""
    return torch.Generator().manual_seed(key(*identity) & 0x7FFFFFFFFFFFFFFF)
