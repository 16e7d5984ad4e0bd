"""METHODS.md and docs/stages say what the cards say; recorded results exist for every claim and belong to the code as it is."""

import json
from pathlib import Path

import pytest

from claims.machinery.claim import claims, file_of
from claims.machinery.evidence import RESULTS
from claims.machinery.fingerprint import fingerprint
from posttrain.view.methods_page import PAGE, page
from posttrain.view.stage_pages import stage_pages

CLAIMS = {c.id: c for c in claims()}


@pytest.mark.skipif(
    not (PAGE.parent / "pyproject.toml").exists(), reason="pages live in the repository, not in the wheel"
)
def test_the_page_is_up_to_date():
    assert PAGE.read_text() == page(), "run `make methods`"
    for file, text in stage_pages().items():
        assert file.exists() and file.read_text() == text, f"{file.name}: run `make methods`"


@pytest.mark.parametrize("id", CLAIMS)
def test_every_claim_has_a_fresh_result(id):
    made = json.loads((RESULTS / f"{id}.json").read_text())
    assert made["verdict"] in ("shown", "not shown")
    assert made["fingerprint"] == fingerprint(file_of(CLAIMS[id])), f"run `posttrain check {id}`"
    assert made["verdict"] == ("shown" if all(c["shown"] for c in made["checks"]) else "not shown")
    assert {c["name"] for c in made["checks"]} == {c.name for c in CLAIMS[id].checks}


def test_no_result_without_a_claim():
    assert {p.stem for p in Path(RESULTS).glob("*.json")} <= set(CLAIMS)
