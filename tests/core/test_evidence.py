"""Evidence is what tests declare and experiments recorded, by level, with attempts."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from posttrain.core import evidence as module
from posttrain.core.errors import UserError
from posttrain.core.evidence import evidence, files, in_words
from posttrain.core.index import described, index, row, rows
from posttrain.core.registry import Card
from tests.scan_evidence import declared, keys, marks_in

ROOT = Path(__file__).parent.parent.parent


def test_a_part_is_derived_where_a_test_says_so() -> None:
    cispo = row("policy_loss", "cispo")
    assert cispo is not None and evidence(cispo)["derived"] is True
    assert files(cispo)["derived"] == ["tests/losses/test_policy.py::test_table"]
    sample = row("rollout", "sample")  # named in many tests, derived in none
    assert sample is not None and evidence(sample)["derived"] is False


def test_no_evidence_without_a_file() -> None:
    stranger = described(Card("not-a-part-at-all", "policy_loss", "Stranger"))
    assert evidence(stranger) == {"derived": False, "learns": False, "table": None, "pocket": None, "real": None}
    assert in_words(evidence(stranger)) == "-" and not any(files(stranger).values())


def attempt(number: int, level: str, verdict: str) -> dict[str, Any]:
    return {"attempt": number, "level": level, "verdict": verdict}


def test_each_level_tells_its_last_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [attempt(1, "table", "not shown"), attempt(2, "table", "shown"), attempt(3, "pocket", "not shown")]
    claim = {"file": "claims/f/x.py", "stale": True, "attempts": tried}
    made = {"claims": {"x": claim}, "real": {"x": {"file": "claims/scale/x.json"}}}
    monkeypatch.setattr(module, "index", lambda: made)
    found = evidence({"id": "x", "derived": ["t"], "learns": []})
    assert found["table"] == {"verdict": "shown", "attempt": 2, "stale": False, "file": "claims/f/x.jsonl"}
    # what is stale is the last attempt: earlier ones are history
    assert in_words(found) == "derived, table: shown (attempt 2), pocket: not shown (attempt 3, stale), real: measured"


def test_an_attempt_at_an_earlier_claim_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = [attempt(1, "table", "shown") | {"earlier": True}, attempt(2, "pocket", "shown") | {"earlier": True}]
    made = {"claims": {"x": {"file": "claims/f/x.py", "stale": True, "attempts": tried}}, "real": {}}
    monkeypatch.setattr(module, "index", lambda: made)
    told = in_words(evidence({"id": "x", "derived": [], "learns": []}))
    assert told == "table: shown (attempt 1), pocket: shown (attempt 2, of an earlier claim)"


def test_recorded_levels() -> None:
    one_shot = index()["claims"]["one-shot-rlvr"]
    assert {a["level"] for a in one_shot["attempts"]} == {"pocket"}
    lite = row("method", "lite-ppo")
    assert lite is not None
    assert evidence(lite)["table"]["attempt"] == 2 and evidence(lite)["real"]["verdict"] == "measured"


def test_a_method_is_derived_when_all_its_parts_that_compute_are() -> None:
    grpo = row("method", "grpo")
    assert grpo is not None
    names = " ".join(files(grpo)["derived"])
    assert "test_advantages.py::test_grpo" in names and "test_policy.py::test_table" in names
    computing = ("shaping", "select", "advantage", "loss", "aggregate", "terms")
    for r in rows("method"):
        used = [row(*p["part"].split("/")) for p in r["parts"] if p["field"] in computing]
        assert bool(r["derived"]) == all(p and p["derived"] for p in used), r["name"]


def test_every_declared_test_exists_and_runs_in_the_suite() -> None:
    found = declared()
    assert len(found) > 100
    for marks in found.values():
        for test in (t for tests in marks.values() for t in tests):
            file, _, name = test.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(), test


def test_a_test_that_derives_holds_expected_values() -> None:
    """Its own, those of a table at the top of the file, or its parameters; and it asserts something."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        source = file.read_text()
        tests = {name for name, mark, _ in marks_in(file) if mark == "derived"}
        for node in ast.parse(source).body:
            if isinstance(node, ast.FunctionDef) and node.name in tests:
                first = min(d.lineno for d in node.decorator_list)
                body = source.splitlines()[first - 1 : node.end_lineno]
                literals = [n for n in ast.walk(node) if isinstance(n, ast.Constant) and not isinstance(n.value, str)]
                names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id.isupper()}
                assert literals or names, f"{file.name}::{node.name} has no expected values"
                assert any("assert" in line or "close(" in line for line in body), f"{file.name}::{node.name}"


def test_a_mark_must_name_parts() -> None:
    def call(text: str) -> ast.Call:
        node = ast.parse(text, mode="eval").body
        assert isinstance(node, ast.Call)
        return node

    assert keys(call('m("a/b", "c/d")'), "t") == ["a/b", "c/d"]
    for wrong in ("m()", 'm("grpo")', "m(NAMES)", 'm(*["a/b"])', 'm(part="a/b")'):
        with pytest.raises(UserError, match="write each part out"):
            keys(call(wrong), "t")
