"""The committed index says what the code, the tests and the records say."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from posttrain.core.errors import UserError
from posttrain.core.index import INDEX
from posttrain.core.registry import Part, find
from posttrain.view import index as view


def test_the_index_is_up_to_date() -> None:
    text = view.text()
    made, held = json.loads(text), json.loads(INDEX.read_text())
    for section in made:
        if isinstance(made[section], dict):
            differ = {
                k for k in made[section].keys() | held[section].keys() if made[section].get(k) != held[section].get(k)
            }
            assert not differ, f"{section}: {sorted(differ)[:5]}: run `make index`"
    assert INDEX.read_text() == text, "run `make index`"


def test_what_a_row_holds() -> None:
    row = json.loads(INDEX.read_text())["parts"]["policy_loss/cispo"]
    part = find("cispo", "policy_loss")
    assert row["parameters"] == {"high": "4.0"} and row["laws"] == list(part.card.laws) and row["base"] == "reinforce"
    assert row["doc"] == part.card.doc and row["module"] == part.fn.__module__
    assert row["paper_title"].startswith("MiniMax-M1")
    grpo = json.loads(INDEX.read_text())["parts"]["method/grpo"]
    told = [(p["field"], p["part"]) for p in grpo["parts"]]
    assert ("advantage", "advantage/grpo") in told and ("loss", "policy_loss/ppo") in told


def test_nothing_in_it_differs_from_run_to_run() -> None:
    assert " at 0x" not in INDEX.read_text() and "/home/" not in INDEX.read_text() and "/tmp/" not in INDEX.read_text()


def test_a_function_as_parameter_is_told_by_its_name() -> None:
    part: Part = find("cispo", "policy_loss")
    named = replace(part, params={"high": max})  # type: ignore[type-var]
    assert view._written(part.but(high=4)) == "cispo(high=4)" and view._written(named) == "cispo(high=max)"
    assert view._written(part) == "cispo"


def test_a_declaration_of_what_is_no_part_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {"policy_loss/csipo": {"derived": ["tests/x.py::test_y"], "learns": []}}
    monkeypatch.setattr("tests.scan_evidence.declared", lambda: wrong)
    with pytest.raises(UserError, match=r"tests/x.py::test_y declares 'policy_loss/csipo'.*'policy_loss/cispo'"):
        view.build()
