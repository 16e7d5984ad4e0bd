"""`check` writes what came out, shown or not; a result whose code has changed is stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claims.machinery import evidence
from claims.machinery.claim import Check, Claim, claim
from claims.machinery.record import check, table
from posttrain.core.errors import UserError
from posttrain.core.registry import _PARTS


@pytest.fixture
def coin() -> Claim:
    """A claim of this file: heads beats tails by 1, and by too little for its second check."""
    arms = {"heads": lambda seed: {"x": seed + 1.0}, "tails": lambda seed: {"x": float(seed)}}
    checks = (Check("heads", "x", "heads", "tails"), Check("by far", "x", "heads", "tails", margin=2.0))
    made = claim(
        Claim("a-coin", "A coin", "", "heads beats tails", "two arms", arms, checks, (0, 1, 2), "toys"), __file__
    )
    yield made
    del _PARTS["claim"]["a-coin"]


def test_what_is_written(coin: Claim, tmp_path: Path) -> None:
    (made,) = check(["a-coin"], folder=tmp_path)
    assert json.loads((tmp_path / "a-coin.json").read_text()) == made
    assert made["verdict"] == "not shown" and made["seeds"] == [0, 1, 2] and len(made["fingerprint"]) == 16
    assert made["arms"]["heads"]["x"] == {"mean": 2.0, "std": 1.0, "values": [1.0, 2.0, 3.0]}
    first = {"name": "heads", "metric": "x", "difference": 1.0, "low": 1.0, "high": 1.0, "margin": 0.0, "shown": True}
    assert made["checks"] == [first, first | {"name": "by far", "margin": 2.0, "shown": False}]
    assert list(tmp_path.iterdir()) == [tmp_path / "a-coin.json"]  # nothing half-written is left
    told = table(made)
    assert "a-coin: not shown (3 seeds" in told and "+ heads: x +1.000" in told and "- by far" in told


def test_a_family_is_run_as_a_whole_and_nothing_is_written_unasked(coin: Claim, tmp_path: Path) -> None:
    assert [m["id"] for m in check(family="toys", write=False, folder=tmp_path)] == ["a-coin"]
    assert not list(tmp_path.iterdir())


def test_mistakes_are_told(coin: Claim) -> None:
    with pytest.raises(UserError, match="did you mean 'a-coin'"):
        check(["a-coyn"])
    with pytest.raises(UserError, match="no family of claims named 'toyz'"):
        check(family="toyz")
    with pytest.raises(UserError, match="not both"):
        check(["a-coin"], family="toys")


def test_levels(coin: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "RESULTS", tmp_path)
    assert evidence.claim_level("a-coin") == "none"
    (made,) = check(["a-coin"], folder=tmp_path)
    assert evidence.claim_level("a-coin") == "not shown"
    (tmp_path / "a-coin.json").write_text(json.dumps(made | {"fingerprint": "another"}))
    assert evidence.claim_level("a-coin") == "stale"
    (tmp_path / "a-coin.json").write_text(json.dumps(made | {"file": "posttrain/claims/gone.py"}))
    assert evidence.claim_level("a-coin") == "stale"
    assert evidence.recorded() == ["a-coin"]
