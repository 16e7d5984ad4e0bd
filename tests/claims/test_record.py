"""`check` records every attempt, shown or not, and adds lines only; what would make a result look better than it is is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from claims.machinery import record as recording
from claims.machinery.claim import _CLAIMS, Check, Claim, Filed, claim, find_claim
from claims.machinery.evidence import attempts, attempts_file, is_earlier, is_stale, told
from claims.machinery.fingerprint import ROOT
from claims.machinery.record import How, check, is_outdated, numbers
from claims.machinery.summary import table
from claims.machinery.verdict import EXACT, RULE
from posttrain.core.errors import UserError

ARMS = {"heads": lambda seed: {"x": seed + 1.0}, "tails": lambda seed: {"x": float(seed)}}
CHECKS = (
    Check("heads", "x", "heads", "tails", exact=True), Check("by far", "x", "heads", "tails", margin=2.0, exact=True)
)  # fmt: skip


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


def checked(folder: Path, **how: object) -> list[dict]:
    return check(["a-coin"], how=How(folder=folder, work=folder / "work", **how))  # type: ignore[arg-type]


def test_what_is_written(coin: Claim, tmp_path: Path) -> None:
    (made,) = checked(tmp_path)
    assert [{"id": "a-coin"} | line for line in lines(tmp_path)] == [made]
    assert made["verdict"] == "not shown" and made["seeds"] == [0, 1, 2] and len(made["fingerprint"]) == 16
    assert (made["attempt"], made["level"], made["rule"]) == (1, "table", RULE) and len(made["date"]) == 10
    assert made["arms"]["heads"]["x"] == {"mean": 2.0, "std": 1.0, "values": [1.0, 2.0, 3.0]}
    first = {
        "name": "heads", "metric": "x", "difference": 1.0, "low": 1.0, "high": 1.0, "margin": 0.0, "shown": True, "how": EXACT,
        "better": "heads", "worse": "tails", "lower": False, "exact": True,
    }  # fmt: skip
    assert made["checks"] == [first, first | {"name": "by far", "margin": 2.0, "shown": False}]
    assert made["machines"][0]["device"] == "cpu" and made["machines"][0]["torch"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "test_record.jsonl",
        "work",
    ]  # no curves: these arms have none
    told = table(made)
    assert "a-coin: not shown (attempt 1, 3 seeds" in told and "+ heads: x +1.000" in told and "- by far" in told
    assert attempts_file(coin) == ROOT / "tests/claims/test_record.jsonl"  # beside the claim's file


def test_another_margin_or_check_needs_seeds_not_used_before(coin: Claim, tmp_path: Path) -> None:
    checked(tmp_path)
    first = (tmp_path / "test_record.jsonl").read_text()
    for checks in (
        CHECKS[:1],
        (replace(CHECKS[0], margin=0.5), CHECKS[1]),
        (replace(CHECKS[0], lower=True), CHECKS[1]),
    ):
        changed(checks=checks)
        with pytest.raises(UserError, match=r"seeds 0, 1, 2 were used by an earlier attempt.*range\(3, 6\)"):
            checked(tmp_path)
    changed(seeds=(2, 3, 4))
    with pytest.raises(UserError, match="seeds 2 were used"):
        checked(tmp_path)
    changed(seeds=(3, 4, 5), checks=CHECKS[:1])
    assert checked(tmp_path)[0]["attempt"] == 2
    assert (tmp_path / "test_record.jsonl").read_text().startswith(first)
    assert [(x["attempt"], x["verdict"]) for x in lines(tmp_path)] == [(1, "not shown"), (2, "shown")]


def test_an_attempt_with_other_seeds_checks_or_margins_is_of_an_earlier_claim(coin: Claim, tmp_path: Path) -> None:
    checked(tmp_path)
    (made,) = attempts(coin, tmp_path)
    for now, earlier in (
        ({}, False),
        ({"tried": "more words", "checks": (replace(CHECKS[0], name="renamed"), CHECKS[1])}, False),
        ({"seeds": (3, 4, 5)}, True),
        ({"checks": (*CHECKS, replace(CHECKS[0], lower=True))}, True),
        ({"checks": (replace(CHECKS[0], margin=0.5), CHECKS[1])}, True),
    ):
        assert is_earlier(replace(coin, **now), made) is earlier, now


def test_other_numbers_on_the_same_seeds_are_refused(coin: Claim, tmp_path: Path) -> None:
    """The world has changed under the claim, so it is another attempt."""
    checked(tmp_path)
    before = (tmp_path / "test_record.jsonl").read_text()
    changed(arms=ARMS | {"heads": lambda seed: {"x": seed + 1.5}})
    with pytest.raises(UserError, match="numbers of seeds 0, 1, 2 differ from those recorded"):
        check(["a-coin"], how=How(folder=tmp_path, work=tmp_path / "elsewhere"))
    assert (tmp_path / "test_record.jsonl").read_text() == before


def test_the_same_numbers_again_are_a_line_that_confirms(coin: Claim, tmp_path: Path) -> None:
    checked(tmp_path)
    path = tmp_path / "test_record.jsonl"
    old = lines(tmp_path)[0] | {"date": "2001-01-01", "fingerprint": "old", "ground": "old"}
    path.write_text(json.dumps(old) + "\n")
    assert is_outdated(coin, tmp_path) and is_stale(coin, tmp_path)
    changed(tried="more words", checks=(replace(CHECKS[0], name="renamed"), CHECKS[1]))
    (made,) = checked(tmp_path)
    assert lines(tmp_path)[0] == old and (made["attempt"], made["date"]) == (1, "2001-01-01")
    again = lines(tmp_path)[1]
    assert (again["confirms"], again["seeds"]) == (1, [0, 1, 2]) and again["fingerprint"] == made[
        "fingerprint"
    ] != "old"
    assert not is_stale(find_claim("a-coin"), tmp_path) and len(attempts(find_claim("a-coin"), tmp_path)) == 1


def test_trials_leave_the_seeds_that_decide_alone(coin: Claim, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a look at them would be an attempt; try others"):
        checked(tmp_path, write=False)
    (made,) = checked(tmp_path, write=False, seeds=(100, 101, 102))
    assert "attempt" not in made and made["seeds"] == [100, 101, 102] and not (tmp_path / "test_record.jsonl").exists()
    with pytest.raises(UserError, match="recorded on its own seeds 0, 1, 2, got 100"):
        checked(tmp_path, seeds=(100,))
    checked(tmp_path)
    assert checked(tmp_path, write=False)  # these have been looked at


def test_parts_on_several_machines_are_recorded_when_all_are_there(coin: Claim, tmp_path: Path) -> None:
    said: list[str] = []
    here, there = tmp_path / "here", tmp_path / "there"
    how = How(folder=tmp_path, work=here, seeds=(0, 1), tell=said.append)
    assert check(["a-coin"], how=how) == [] and "4 of 6 outcomes are in" in said[-1]
    assert check(["a-coin"], how=replace(how, work=there, seeds=(2,))) == []
    assert check(["a-coin"], how=replace(how, seeds=None, merge=there))[0]["attempt"] == 1
    assert "a-coin: 2 new outcomes merged" in said
    with pytest.raises(UserError, match=r"no folder .*nowhere to merge"):
        check(["a-coin"], how=replace(how, merge=tmp_path / "nowhere"))


def test_a_killed_check_goes_on_where_it_was(coin: Claim, tmp_path: Path) -> None:
    """Finished runs are kept as files, and not made again; half a file does not count."""
    made: list[int] = []

    def heads(seed: int) -> dict[str, float]:
        made.append(seed)
        if seed == 1 and len(made) == 2:
            raise KeyboardInterrupt
        return {"x": seed + 1.0}

    changed(arms=ARMS | {"heads": heads})
    with pytest.raises(KeyboardInterrupt):
        checked(tmp_path)
    said: list[str] = []
    checked(tmp_path, tell=said.append)
    assert made == [0, 1, 1, 2] and said[0] == "2 of 6 runs are there from before"
    assert said[1].startswith("3/6 a-coin: heads, seed 1, 0.0 s; 0 s so far")


def test_the_history_must_hold_the_claim_as_it_is(coin: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository of its own: not committed, changed since, made with a commit that had another margin."""
    from claims.machinery import committed, fingerprint

    monkeypatch.setattr(fingerprint, "ROOT", tmp_path)
    assert not committed.has_history() and committed.commit() == ""
    (tmp_path / "COMMIT").write_text("f00\n")
    assert committed.commit() == "f00"
    (tmp_path / "a.py").write_text("margin = 1\n")

    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    with pytest.raises(UserError, match=r"a\.py is not committed; commit it before its seeds are run"):
        committed.must_be_committed(["a.py"])
    git("add", "a.py")
    git("commit", "-q", "-m", "margin 1")
    committed.must_be_committed(["a.py"])
    first = committed.commit()
    (tmp_path / "copy").mkdir()
    with monkeypatch.context() as elsewhere:  # a copy inside somebody else's repository has no history of its own
        elsewhere.setattr(fingerprint, "ROOT", tmp_path / "copy")
        assert not committed.has_history() and committed.commit() == ""
    (tmp_path / "a.py").write_text("margin = 0\n")
    with pytest.raises(UserError, match=r"a\.py differs from what is committed"):
        committed.must_be_committed(["a.py"])
    git("commit", "-q", "-am", "margin 0")
    committed.must_have_been_committed("a.py", committed.commit())
    with pytest.raises(UserError, match=r"a\.py has changed since"):
        committed.must_have_been_committed("a.py", first)
    with pytest.raises(UserError, match="none of this branch's"):
        committed.must_have_been_committed("a.py", "f" * 40)


def test_an_uncommitted_claim_is_not_run(coin: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim of this test stands in a file that is always there, so the refusal is forced; without a history nothing is written."""
    monkeypatch.setattr(recording, "has_history", lambda: True)
    monkeypatch.setattr(recording, "must_be_committed", _refuse)
    with pytest.raises(UserError, match="not committed: tests"):
        check(["a-coin"], how=How(work=tmp_path))
    monkeypatch.setattr(recording, "has_history", lambda: False)
    said: list[str] = []
    (made,) = check(["a-coin"], how=How(work=tmp_path, tell=said.append))
    assert "attempt" not in made and "no git history here, so nothing is recorded" in said[-1]
    assert not attempts_file(coin).exists()


def _refuse(files: list[str]) -> None:
    raise UserError(f"not committed: {files[0]}")


def test_a_file_of_attempts_stays_small(coin: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "LIMIT", 100)
    with pytest.raises(UserError, match="more than 100"):
        checked(tmp_path)
    assert not (tmp_path / "test_record.jsonl").exists()


def test_a_family_is_run_as_a_whole_and_nothing_is_written_unasked(coin: Claim, tmp_path: Path) -> None:
    how = How(write=False, seeds=(7, 8, 9), folder=tmp_path, work=tmp_path / "work")
    assert [m["id"] for m in check(family="toys", how=how)] == ["a-coin"]
    assert [p.name for p in tmp_path.iterdir()] == ["work"]


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
    assert dpo["file"] == "claims/preference/dpo.py" and dpo["level"] == "pocket" and dpo["attempts"][0]["seeds"] == 8
    assert "arms" not in dpo["attempts"][0] and {"low", "high", "margin"} <= set(dpo["attempts"][0]["checks"][0])


def test_claims_are_no_parts() -> None:
    from posttrain.core.registry import STAGES

    assert "claim" not in STAGES


@pytest.mark.parametrize("file", sorted((ROOT / "claims").rglob("*.jsonl")), ids=lambda f: f.stem)
def test_recorded_attempts_are_numbered_and_differ(file: Path) -> None:
    every = [json.loads(line) for line in file.read_text().splitlines()]
    made = [line for line in every if "attempt" in line]
    assert all(line["confirms"] <= len(made) for line in every if "attempt" not in line)
    assert [a["attempt"] for a in made] == list(range(1, len(made) + 1)) and file.with_suffix(".py").is_file()
    assert [a["date"] for a in made] == sorted(a["date"] for a in made)
    assert all(numbers(a) != numbers(b) for a, b in zip(made, made[1:], strict=False))
    assert file.stat().st_size <= recording.LIMIT
    assert all(a["verdict"] == ("shown" if all(c["shown"] for c in a["checks"]) else "not shown") for a in made)
    assert [a["attempt"] for a in attempts(find_claim(file.stem.replace("_", "-")))] == [a["attempt"] for a in made]
