"""Committed measurements: every row says what was measured, against what, where and how."""

import json
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("*.json"))
KEYS = {"name", "value", "unit", "peer", "peer_value", "ratio", "bar", "met", "hardware", "versions", "command", "date"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_rows_are_whole(file):
    rows = json.loads(file.read_text())
    assert rows
    names = [row["name"] for row in rows]
    assert len(set(names)) == len(names)
    for row in rows:
        assert row.keys() >= KEYS
        assert isinstance(row["value"], (int, float))
        assert (row["bar"] is None) == (row["met"] is None)
        assert (row["peer"] is None) == (row["peer_value"] is None)


def as_number(bar):
    """Bars such as 0.7, "200,000 tokens/s" and "50% of 221,659"; None for one in words."""
    share, _, whole = str(bar).removesuffix(" tokens/s").replace(",", "").partition("% of ")
    try:
        return float(share) / 100 * float(whole) if whole else float(share)
    except ValueError:
        return None


COUNTED = [row for f in FILES for row in json.loads(f.read_text()) if as_number(row["bar"]) is not None]


@pytest.mark.parametrize("row", COUNTED, ids=lambda r: r["name"])
def test_a_bar_is_met_or_not_by_the_value(row):
    bar, low = as_number(row["bar"]), row["unit"] == "s" or row["name"].startswith("prefill")
    assert row["met"] == (row["value"] <= bar if low else row["value"] >= bar)
