"""What every claim file must be: short, able to fail, recorded with numbers that say what its verdict says."""

from __future__ import annotations

import ast
import re

import pytest

from claims.machinery.claim import Claim, claims, file_of
from claims.machinery.evidence import attempts, is_waiting, judged_attempts
from claims.machinery.fingerprint import ROOT
from claims.machinery.verdict import FIRST_RULE, RULE, find_out, values_of

CLAIMS = claims()


@pytest.mark.parametrize("c", CLAIMS, ids=lambda c: c.id)
def test_a_claim_is_one_short_file_that_names_its_paper(c: Claim) -> None:
    path = ROOT / file_of(c)
    assert path.stem == c.id.replace("-", "_")
    assert len(path.read_text().splitlines()) <= 200
    assert c.paper and c.says and c.experiment and c.family and c.tried


@pytest.mark.parametrize("c", CLAIMS, ids=lambda c: c.id)
def test_the_verdict_follows_from_the_recorded_numbers(c: Claim) -> None:
    """Every finding once more, from the values of each arm and seed alone, by the rule of the code."""
    if is_waiting(c):
        pytest.skip("not run yet as it stands")
    made = judged_attempts(c)[-1]
    assert made["seeds"] == list(c.seeds) and made["level"] == c.level
    for check, told in zip(c.checks, made["checks"], strict=True):
        again = find_out(check, values_of(made))
        assert (told["shown"], told["how"]) == (again.shown, again.how)
        assert told["difference"] == pytest.approx(again.difference, abs=1e-4)
        assert (told["low"], told["high"]) == (pytest.approx(again.low, abs=1e-4), pytest.approx(again.high, abs=1e-4))
    assert made["verdict"] == ("shown" if all(x["shown"] for x in made["checks"]) else "not shown")


@pytest.mark.parametrize("c", CLAIMS, ids=lambda c: c.id)
def test_every_attempt_ever_made_is_held_to_the_rule(c: Claim) -> None:
    """Early attempts did not say which arms they compared; it is found again, and what was said then is kept beside it."""
    for made, told in zip(attempts(c), judged_attempts(c), strict=True):
        assert told["rule"] == RULE and len(told["checks"]) == len(made["checks"])
        for was, now in zip(made["checks"], told["checks"], strict=True):
            assert now["difference"] == pytest.approx(was["difference"], rel=1e-4, abs=1e-4)
            assert "how" in was or now["recorded"] == {k: was[k] for k in ("low", "high", "shown")} | {
                "how": FIRST_RULE
            }
        assert told.get("recorded_verdict", told["verdict"]) == made["verdict"]


@pytest.mark.parametrize("c", CLAIMS, ids=lambda c: c.id)
def test_arms_on_a_language_model_say_what_makes_them_fair(c: Claim) -> None:
    """Those that go through the public API count what they spend; two train no policy: they try as many prompts, or gradients, each."""
    if c.level != "table" and c.id not in ("rlprompt", "rl-pgd-robustness"):
        assert c.shares and "machinery.arms" in (ROOT / file_of(c)).read_text()


@pytest.mark.parametrize("c", [c for c in CLAIMS if c.level != "table"], ids=lambda c: c.id)
def test_a_claim_on_a_language_model_runs_the_registered_system(c: Claim) -> None:
    """An arm names the system as a user would (grpo, grpo(n=4)), and no part or method is made in the file."""
    tree = ast.parse((ROOT / file_of(c)).read_text())
    told = [
        k.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "Claim"
        for k in n.keywords
    ]
    named = re.compile(rf"{re.escape(c.id)}(-\w+)?(\(|$)")
    words = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str) and n not in told]
    assert any(named.match(n.value) for n in words)
    made = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert not made & {"Method", "Plan", "Phase", "Objective", "method", "plan"}
