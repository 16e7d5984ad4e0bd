"""The codec of token streams: what is written comes back, in little room, and reading needs no torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from posttrain.core.codec import decode, encode, last_context, read


@pytest.mark.parametrize(
    ("x", "size"),
    [
        (np.array([1, 65535, 0]), 1 + 3 * 2),  # ids below 2^16 take two bytes
        (np.array([1, 65536, 0]), 1 + 3 * 4),
        (np.array([-1, 2**40]), 1 + 2 * 8),
        (np.array([-0.1, -1 / 3, 1e-30], dtype=np.float32), 1 + 3 * 4),
        (np.array([0.1, 0.2]), 1 + 2 * 8),
        (np.ones(200, dtype=bool), 1 + 4 + 1 + 1),  # all the same: a count and one value
        (np.full(200, -0.7071, dtype=np.float32), 1 + 4 + 1 + 4),
        (np.array([0.0] * 5 + [-0.0], dtype=np.float32), 1 + 6 * 4),  # equal, but not the same bits
        (np.array([True, False, True]), 1 + 3),
        (np.zeros(0, dtype=np.int64), 1),
        (np.arange(6.0, dtype=np.float32).reshape(3, 2), 2 + 2 * 4 + 1 + 6 * 4),  # actions that are vectors
        (np.full(7, np.nan, dtype=np.float32), 1 + 4 + 1 + 4),
    ],
)  # fmt: skip
def test_streams_come_back_exactly_in_the_room_they_need(x: np.ndarray, size: int) -> None:
    blob = encode(x)
    assert len(blob) == size
    back = np.array(decode(blob), dtype=x.dtype).reshape(x.shape)
    assert back.tobytes() == x.tobytes()


def test_figures_may_be_rounded_to_half_and_do_not_overflow() -> None:
    assert decode(encode(np.array([0.1, 1e9], dtype=np.float32), half=True)) == [0.0999755859375, 65504.0]


def test_json_of_the_first_version_is_read_too() -> None:
    assert read("[1, 2.5]") == [1, 2.5] and read(None) is None and read(encode(np.array([3, 4]))) == [3, 4]


def test_turns_of_one_context_are_joined_and_what_was_seen_between_is_masked() -> None:
    def turn(continues: int, seen: list[int], tokens: list[int], adv: list[float] | None) -> dict:
        n = len(tokens)
        streams = {"tokens": tokens, "logp": [-1.0] * n, "mask": [1] * n, "adv": adv, "entropy": None, "ratio": None}
        return {"continues": continues, "seen": seen, **streams}

    turns = [turn(0, [9], [1], None), turn(0, [7], [2, 3], [0.5, 0.5]), turn(1, [8, 8], [4], None)]
    row = last_context(turns)  # the second began a new context, so the first is not of it
    assert row["turns"] == 3 and row["tokens"] == [2, 3, 8, 8, 4] and row["mask"] == [1, 1, 0, 0, 1]
    assert (
        row["logp"] == [-1.0, -1.0, 0.0, 0.0, -1.0]
        and row["adv"] == [0.5, 0.5, 0.0, 0.0, 0.0]
        and row["entropy"] is None
    )


def test_a_reader_needs_no_torch() -> None:
    code = "import sys, posttrain.runs.reader; assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
