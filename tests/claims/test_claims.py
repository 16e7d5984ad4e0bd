"""What every claim file must be: short, able to fail, recorded with numbers that say what its verdict says."""

from __future__ import annotations

import pytest

from claims.machinery.claim import Claim, claims, file_of
from claims.machinery.evidence import attempts
from claims.machinery.experiment import find_out
from claims.machinery.fingerprint import ROOT

CLAIMS = claims()


@pytest.mark.parametrize("c", CLAIMS, ids=lambda c: c.id)
def test_a_claim_is_one_short_file_that_names_its_paper(c: Claim) -> None:
    path = ROOT / file_of(c)
    assert path.stem == c.id.replace("-", "_")
    assert len(path.read_text().splitlines()) <= 200
    assert c.paper and c.says and c.experiment and c.family and c.tried


@pytest.mark.parametrize("c", CLAIMS, ids=lambda c: c.id)
def test_the_verdict_follows_from_the_recorded_numbers(c: Claim) -> None:
    """Every finding once more, from the values of each arm and seed alone."""
    made = attempts(c)[-1]
    values = {arm: {m: x["values"] for m, x in metrics.items()} for arm, metrics in made["arms"].items()}
    assert made["seeds"] == list(c.seeds) and made["tried"] == c.tried and made["level"] == c.level
    for check, told in zip(c.checks, made["checks"], strict=True):
        again = find_out(check, values)
        assert told["shown"] == again.shown
        assert told["difference"] == pytest.approx(again.difference, abs=1e-4)
        assert (told["low"], told["high"]) == (pytest.approx(again.low, abs=1e-4), pytest.approx(again.high, abs=1e-4))
