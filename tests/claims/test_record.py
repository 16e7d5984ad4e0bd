"""`check` records every attempt, shown or not; equal numbers are no new attempt; a result whose code has changed is stale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from claims.machinery import record as recording
from claims.machinery.claim import _CLAIMS, Check, Claim, Filed, claim, find_claim
from claims.machinery.evidence import attempts, attempts_file, is_stale, told
from claims.machinery.fingerprint import ROOT
from claims.machinery.record import check, is_outdated, numbers, table
from posttrain.core.errors import UserError

ARMS = {"heads": lambda seed: {"x": seed + 1.0}, "tails": lambda seed: {"x": float(seed)}}
CHECKS = (Check("heads", "x", "heads", "tails"), Check("by far", "x", "heads", "tails", margin=2.0))


@pytest.fixture
def coin() -> Iterator[Claim]:
    """A claim of this file: heads beats tails by 1, and by too little for its second check."""
    made = Claim("a-coin", "A coin", "", "heads beats tails", "two arms", ARMS, CHECKS, (0, 1, 2), "toys")
    yield claim(made, __file__)
    del _CLAIMS["a-coin"]


def changed(**changes: object) -> None:
    """The coin as it is now, after an edit of its file."""
    _CLAIMS["a-coin"] = Filed(replace(find_claim("a-coin"), **changes), _CLAIMS["a-coin"].file)  # type: ignore[arg-type]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "test_record.jsonl").read_text().splitlines()]


def test_what_is_written(coin: Claim, tmp_path: Path) -> None:
    (made,) = check(["a-coin"], folder=tmp_path)
    assert [{"id": "a-coin"} | line for line in lines(tmp_path)] == [made]
    assert made["verdict"] == "not shown" and made["seeds"] == [0, 1, 2] and len(made["fingerprint"]) == 16
    assert (made["attempt"], made["level"]) == (1, "table") and len(made["date"]) == 10
    assert made["arms"]["heads"]["x"] == {"mean": 2.0, "std": 1.0, "values": [1.0, 2.0, 3.0]}
    first = {"name": "heads", "metric": "x", "difference": 1.0, "low": 1.0, "high": 1.0, "margin": 0.0, "shown": True}
    assert made["checks"] == [first, first | {"name": "by far", "margin": 2.0, "shown": False}]
    assert list(tmp_path.iterdir()) == [tmp_path / "test_record.jsonl"]  # nothing half-written is left
    told = table(made)
    assert "a-coin: not shown (attempt 1, 3 seeds" in told and "+ heads: x +1.000" in told and "- by far" in told
    assert attempts_file(coin) == ROOT / "tests/claims/test_record.jsonl"  # beside the claim's file


def test_other_numbers_are_another_attempt_and_the_first_stays(coin: Claim, tmp_path: Path) -> None:
    check(["a-coin"], folder=tmp_path)
    first = (tmp_path / "test_record.jsonl").read_text()
    changed(checks=CHECKS[:1])
    assert check(["a-coin"], folder=tmp_path)[0]["attempt"] == 2
    assert (tmp_path / "test_record.jsonl").read_text().startswith(first)
    changed(checks=(replace(CHECKS[0], margin=0.5),))  # the same values held to another margin
    check(["a-coin"], folder=tmp_path)
    changed(seeds=(3, 4, 5))
    check(["a-coin"], folder=tmp_path)
    assert [(x["attempt"], x["verdict"]) for x in lines(tmp_path)] == [
        (1, "not shown"), (2, "shown"), (3, "shown"), (4, "shown")
    ]  # fmt: skip


def test_the_same_numbers_again_refresh_the_last_attempt(coin: Claim, tmp_path: Path) -> None:
    check(["a-coin"], folder=tmp_path)
    path = tmp_path / "test_record.jsonl"
    old = lines(tmp_path)[0] | {
        "date": "2001-01-01",
        "fingerprint": "old",
        "ground": "old",
        "seconds": 99.0,
        "versions": {},
    }
    path.write_text(json.dumps(old) + "\n")
    assert is_outdated(coin, tmp_path) and is_stale(coin, tmp_path)
    changed(tried="more words", checks=(replace(CHECKS[0], name="renamed"), CHECKS[1]))
    (made,) = check(["a-coin"], folder=tmp_path)
    assert len(lines(tmp_path)) == 1 and (made["attempt"], made["date"]) == (1, "2001-01-01")
    assert made["fingerprint"] != "old" and made["ground"] != "old" and made["seconds"] < 99 and made["versions"]
    assert made["tried"] == "more words" and made["checks"][0]["name"] == "renamed"
    assert not is_outdated(find_claim("a-coin"), tmp_path) and not is_stale(find_claim("a-coin"), tmp_path)


def test_a_file_of_attempts_stays_small(coin: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LIMIT", 100)
    with pytest.raises(UserError, match="more than 100"):
        check(["a-coin"], folder=tmp_path)
    assert not list(tmp_path.iterdir())


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
    with pytest.raises(UserError, match="no level of evidence named 'tabel'; did you mean 'table'"):
        replace(coin, level="tabel")
    with pytest.raises(UserError, match="two claims have the id 'a-coin'"):
        claim(coin, "elsewhere.py")


def test_what_the_index_carries(coin: Claim, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(coin)["attempts"] == [] and told(coin)["stale"] is False
    dpo = told(find_claim("dpo"))
    assert dpo["file"] == "claims/preference/dpo.py" and dpo["level"] == "table" and dpo["attempts"][0]["seeds"] == 8
    assert "arms" not in dpo["attempts"][0] and {"low", "high", "margin"} <= set(dpo["attempts"][0]["checks"][0])


def test_claims_are_no_parts() -> None:
    from posttrain.core.registry import STAGES

    assert "claim" not in STAGES


@pytest.mark.parametrize("file", sorted((ROOT / "claims").rglob("*.jsonl")), ids=lambda f: f.stem)
def test_recorded_attempts_are_numbered_and_differ(file: Path) -> None:
    made = [json.loads(line) for line in file.read_text().splitlines()]
    assert [a["attempt"] for a in made] == list(range(1, len(made) + 1)) and file.with_suffix(".py").is_file()
    assert [a["date"] for a in made] == sorted(a["date"] for a in made)
    assert all(numbers(a) != numbers(b) for a, b in zip(made, made[1:], strict=False))
    assert file.stat().st_size <= recording.LIMIT
    assert all(a["verdict"] == ("shown" if all(c["shown"] for c in a["checks"]) else "not shown") for a in made)
    assert attempts(find_claim(file.stem.replace("_", "-"))) == made
