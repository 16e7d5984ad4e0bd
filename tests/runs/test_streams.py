"""Streams of many answers at once: the bytes and figures that each would have alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from posttrain.core.codec import decode, encode
from posttrain.runs.rows import means, repetition, repetitions
from posttrain.runs.streams import array, arrays, blobs


def ids(*lengths: int, most: int = 60_000) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(0, most, (n,), generator=generator) for n in lengths]


@pytest.mark.parametrize(
    "streams",
    [
        ids(5, 0, 9, 4),
        [*ids(5, 3), torch.tensor([70_000, 1])],  # one of them needs 32 bits
        [torch.tensor([-1, 4]), torch.tensor([3, 3, 3, 3, 3, 3])],
        [torch.ones(7, dtype=torch.bool), None, torch.zeros(0, dtype=torch.bool)],
        [torch.full((6,), 0.25), torch.linspace(-3, 70_000, 8)],
        [torch.randn(3, 2), torch.randn(4, 2)],  # actions that are vectors
        [torch.ones(3), torch.ones(3, dtype=torch.float64)],
        [torch.ones(3, dtype=torch.bfloat16), None],
        [None, None],
        [],
    ],
)
@pytest.mark.parametrize("half", [False, True])
def test_each_is_written_as_it_would_be_alone(streams: list[Tensor | None], half: bool) -> None:
    want = [None if x is None else encode(array(x), half) for x in streams]
    assert blobs(streams, half) == want
    assert [None if b is None else len(decode(b)) for b in want] == [None if x is None else len(x) for x in streams]
    for x, y in zip(arrays(streams), streams, strict=True):
        assert (x is None) == (y is None)
        assert x is None or y is None or np.array_equal(x, array(y))


def test_repetition_of_each_does_not_reach_into_the_next() -> None:
    twice = torch.tensor([1, 2, 3, 4, 1, 2, 3, 4])
    many = [twice, torch.tensor([1, 2, 3]), torch.tensor([4, 1, 2, 3, 4]), torch.zeros(9, dtype=torch.long), twice[:0]]
    assert (
        repetitions(many)
        == [repetition(x) for x in many]
        == [pytest.approx(0.2), None, 0.0, pytest.approx(5 / 6), None]
    )
    assert repetitions([torch.randn(6, 2), torch.randn(5, 2)]) == [None, None]


def test_means_are_over_ones_own_actions() -> None:
    own = arrays([torch.tensor([True, False, True]), torch.tensor([False, False]), torch.tensor([True])])
    assert means([torch.tensor([1.0, 9.0, 2.0]), torch.tensor([1.0, 2.0]), None], own) == [1.5, None, None]
