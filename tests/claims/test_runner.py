"""Arms and seeds as jobs: in processes of their own, kept as files, merged by code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from claims.machinery.claim import _CLAIMS, Claim, Filed, find_claim
from claims.machinery.record import How, check
from claims.machinery.runner import folder_of, in_turn, jobs_of, merge, outcomes, run_jobs, seeds_from
from claims.machinery.summary import table
from posttrain.core.errors import UserError


@pytest.fixture
def toy() -> Iterator[Claim]:
    from tests.claims import toy_claim

    _CLAIMS["a-toy"] = Filed(toy_claim.TOY, "tests/claims/toy_claim.py")
    _CLAIMS["a-broken-toy"] = Filed(toy_claim.BROKEN, "tests/claims/toy_claim.py")
    yield toy_claim.TOY
    del _CLAIMS["a-toy"], _CLAIMS["a-broken-toy"]


def test_jobs_run_in_processes_of_their_own_with_one_thread(toy: Claim, tmp_path: Path) -> None:
    said: list[str] = []
    jobs = jobs_of(toy, (0,), tmp_path, "cpu")
    run_jobs(jobs, 2, said.append)
    made = outcomes(toy, (0,), tmp_path)
    assert {o.arm for o in made} == {"one", "two, too"} and {o.metrics["threads"] for o in made} == {1.0}
    assert os.getpid() not in {o.metrics["process"] for o in made}
    assert all(o.machine["device"] == "cpu" and o.machine["torch"] and "commit" in o.machine for o in made)
    assert said[-1].startswith("2/2 a-toy: ") and said[-1].endswith(" 0 s left")
    run_jobs(jobs, 2, said.append)  # nothing is left to do
    assert said[-1] == "2 of 2 runs are there from before"
    assert sorted(p.name for p in folder_of(toy, tmp_path).iterdir()) == ["one-0.json", "two__too-0.json"]


def test_those_that_run_side_by_side_are_of_different_seeds(toy: Claim, tmp_path: Path) -> None:
    """So that no arm waits for a start that another arm of its seed makes; claims stay one after the other, arms in their order."""
    jobs = jobs_of(toy, (5, 6, 7), tmp_path)
    assert [(j.arm, j.seed) for j in in_turn(jobs, 2)] == [
        ("one", 5), ("one", 6), ("two, too", 5), ("two, too", 6), ("one", 7), ("two, too", 7),
    ]  # fmt: skip
    assert in_turn(jobs, 1) == jobs == in_turn(jobs, 0)


@pytest.mark.parametrize("side_by_side", [1, 2])
def test_a_claim_whose_run_fails_does_not_end_the_others(toy: Claim, side_by_side: int, tmp_path: Path) -> None:
    bad, said = find_claim("a-broken-toy"), list[str]()
    jobs = [*jobs_of(bad, range(4), tmp_path), *jobs_of(toy, (0, 1), tmp_path)]
    failed = run_jobs(jobs, side_by_side, said.append)
    assert list(failed) == ["a-broken-toy"] and re.match(r"bad, seed \d: Traceback", failed["a-broken-toy"])
    assert "KeyError: 'no such arm'" in failed["a-broken-toy"]
    assert len(outcomes(toy, (0, 1), tmp_path)) == 4
    assert side_by_side == 2 or len(outcomes(bad, range(4), tmp_path)) == 1  # nothing is begun after the failure
    assert sum("failed, its other runs are left out" in line for line in said) == 1
    made = check(["a-broken-toy", "a-toy"], how=How(write=False, jobs=1, seeds=(8,), work=tmp_path))
    assert [(x["id"], x["verdict"]) for x in made] == [("a-broken-toy", "failed"), ("a-toy", "not shown")]
    assert table(made[0]).startswith("a-broken-toy: failed, nothing is recorded: bad, seed 8: Traceback")
    with pytest.raises(UserError, match="no such arm"):
        check(["a-broken-toy"], how=How(write=False, seeds=(8,), work=tmp_path))


def test_only_results_of_this_code_are_merged(toy: Claim, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there" / "deep" / "inside"
    run_jobs(jobs_of(toy, (0, 1), there))
    other = there / "a-toy" / "0123456789abcdef"
    other.mkdir()
    (other / "one-2.json").write_text("{}")
    run_jobs(jobs_of(toy, (0,), here))
    kept = json.loads((folder_of(toy, here) / "one-0.json").read_text())
    said: list[str] = []
    assert merge(toy, tmp_path / "there", here, said.append) == 2
    assert json.loads((folder_of(toy, here) / "one-0.json").read_text()) == kept
    assert len(outcomes(toy, (0, 1, 2), here)) == 4 and "left out results of other code: 0123456789abcdef" in said[0]


def test_a_seed_list_is_numbers_and_ranges() -> None:
    assert seeds_from("0-3,8") == [0, 1, 2, 3, 8]
    with pytest.raises(UserError, match="give numbers and ranges"):
        seeds_from("0..5")
