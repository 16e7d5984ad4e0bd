"""Randomness by identity: the hash is pinned, its numbers are uniform and unrelated, a pick is never impossible."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from posttrain.core import rng

N = 4096
NEIGHBOURS = torch.arange(N) + 10**12


def splitmix64(key: int, position: int) -> float:
    """The published generator in Python's own integers; its top 24 bits as a number in [0, 1)."""
    full = (1 << 64) - 1
    z = (key + 0x9E3779B97F4A7C15 * (position + 1)) & full
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & full
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
    return ((z ^ (z >> 31)) >> 40) / 2**24


def table() -> Tensor:
    """u[key, position] for neighbouring keys and positions: the worst case, since real keys are hashes."""
    return torch.stack([rng.uniform(NEIGHBOURS, t) for t in range(16)], 1).double()


def test_golden_values() -> None:
    """Changing these changes every sampled answer of every recorded run."""
    assert rng.key(0, 0, "p", 0) == -5307159537571057797
    assert rng.key("a") == -1586550463278054497
    # splitmix64 seeded with 0 begins with 0xE220A8397B1DCDAF: 0xE220A8 / 2^24
    assert float(rng.uniform(torch.tensor([0]), 0)) == 0xE220A8 / 2**24
    assert float(rng.uniform(torch.tensor([2**62]), 7)) == 0.030891001224517822
    assert rng.python(3, "x").random() == 0.8134802998936053
    assert torch.randperm(6, generator=rng.torch_generator(3, "x")).tolist() == [5, 0, 3, 2, 1, 4]


def test_is_splitmix64() -> None:
    keys = [0, 1, -1, 2**62, -(2**63), 2**63 - 1, rng.key("some", "identity")]
    for position in (0, 1, 7, 4095):
        want = [splitmix64(k, position) for k in keys]
        assert rng.uniform(torch.tensor(keys), position).tolist() == want


def test_positions_may_differ_by_row() -> None:
    keys, positions = torch.tensor([5, 5, 6]), torch.tensor([0, 3, 9])
    want = [float(rng.uniform(keys[i : i + 1], int(t))) for i, t in enumerate(positions)]
    assert rng.uniform(keys, positions).tolist() == want


def test_identity_is_all_of_it() -> None:
    """Order, type and cut of the identity matter: ("ab", "c") is not ("a", "bc"), 1 is not "1"."""
    identities = [(1, 2), (2, 1), (12,), ("1", 2), ("1\x1f2",), ("ab", "c"), ("a", "bc"), (1, 2, 0), ()]
    assert len({rng.key(*i) for i in identities}) == len(identities)


def test_moments() -> None:
    """65536 numbers: mean 1/2 +- 1/sqrt(12 n) = 0.0011, variance 1/12 +- sqrt(1/180 / n) = 0.0003; 4 sigma."""
    u = table()
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / math.sqrt(12 * u.numel())
    assert abs(u.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / u.numel())


def test_every_sixteenth_is_as_likely() -> None:
    """Chi-square of 16 bins, 15 degrees of freedom: 37.7 is exceeded once in 1000."""
    count = torch.histc(table(), 16, 0, 1)
    want = table().numel() / 16
    assert float(((count - want) ** 2 / want).sum()) < 37.7


@pytest.mark.parametrize("shift", [(1, 0), (0, 1), (1, 1), (2, 0), (0, 2)])
def test_neighbours_are_unrelated(shift: tuple[int, int]) -> None:
    """Correlation of keys and of positions side by side: 1/sqrt(n) is 0.004; 4 sigma."""
    k, t = shift
    u = table() - 0.5
    a, b = u[: N - k, : 16 - t], u[k:, t:]
    correlation = float((a * b).mean() * 12)
    assert abs(correlation) < 4 / math.sqrt(a.numel())


def test_pick_by_hand() -> None:
    """p = 0.2, 0, 0.5, 0.3, so the borders are 0.2 and 0.7; a border belongs to the token above it."""
    logits_V = torch.tensor([0.2, 0.0, 0.5, 0.3]).log()
    u = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 1 - 2**-24])
    assert rng.pick(logits_V.expand(6, 4), u).tolist() == [0, 0, 2, 2, 3, 3]
    half = torch.tensor([[0.0, 0.0]])  # p = 1/2, 1/2 exactly
    assert rng.pick(half, torch.tensor([0.5])).tolist() == [1]


def test_pick_never_takes_the_impossible() -> None:
    """-inf at the front, between and at the end, with u at both ends of its range and everywhere between."""
    V, B = 500, 4096
    draw = torch.Generator().manual_seed(0)
    logits_BV = torch.randn(B, V, generator=draw) * 4
    dead_BV = torch.rand(B, V, generator=draw) < 0.7
    dead_BV[:, :3] = dead_BV[:, -3:] = True
    dead_BV[:, 7] = False
    logits_BV = logits_BV.masked_fill(dead_BV, -torch.inf)
    u_B = torch.cat([torch.zeros(8), torch.full((8,), 1 - 2**-24), torch.rand(B - 16, generator=draw)])
    token_B = rng.pick(logits_BV, u_B)
    assert not dead_BV.gather(1, token_B.unsqueeze(1)).any()


def test_pick_when_the_sum_is_not_monotone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parallel sum may step up by a bit at an impossible token, even after the last possible one."""
    logits_BV = torch.tensor([[0.5, 0.0, 0.5, 0.0]]).log()
    cdf_BV = torch.tensor([[0.5, 0.5000001, 0.9999999, 1.0]])
    monkeypatch.setattr(Tensor, "cumsum", lambda self, dim: cdf_BV.clone())
    for u, want in ((0.0, 0), (0.5000001, 2), (1 - 2**-24, 2)):
        assert rng.pick(logits_BV, torch.tensor([u])).tolist() == [want]


def test_a_normal_is_finite_even_at_the_largest_uniform() -> None:
    """Key 208044 draws 1 - 2^-24 at place 49: its middle, 1 - 2^-25, is no float32 and rounds to 1."""
    assert float(rng.uniform(torch.tensor([208044]), 49)) == 1 - 2.0**-24
    (largest,) = rng.normal(torch.tensor([208044]), 0, 64)[:, 49].tolist()
    assert largest == pytest.approx(5.294704, abs=1e-4)  # the normal quantile of 1 - 2^-24
