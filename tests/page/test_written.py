"""A real plan of two phases: what it learned from (demonstrations) is told apart from what it wrote; its report; curves of claims."""

from __future__ import annotations

import json
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from posttrain.core import codec
from posttrain.page import claim_curves
from posttrain.page.api import answer
from posttrain.page.folder import Folder
from posttrain.page.report import report
from posttrain.runs import plans
from tests.page.browser import SHOTS, Tab, accessible, expect, needs_browser
from tests.runs import tiny_run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, before = tmp_path_factory.mktemp("plans"), plans.load_policy
    try:
        tiny_run.start_plan(folder / "plan")
    finally:
        plans.load_policy = before  # type: ignore[assignment]
    return folder


def ask(root: Path, address: str, **params: object) -> Any:
    return answer(Folder(root), address, {k: str(v) for k, v in params.items()})


def test_probabilities_of_what_nobody_sampled(root: Path) -> None:
    """A demonstration is stored with log-probabilities of 0: not p = 1 is shown but the trainer's own, exp(logp - 0), which is the ratio."""
    found = ask(root, "tokens", run="plan", phase="sft", step=1, group=0, sample=0)
    db = sqlite3.connect(root / "plan" / "run.sqlite")
    query = "SELECT t.logp, t.ratio FROM turns t JOIN rollouts r USING (id) WHERE phase = 'sft' AND step = 0 AND group_index = 0 AND sample_index = 0"
    logp, ratio = map(codec.decode, db.execute(query).fetchone())
    assert set(logp) == {0.0} and min(ratio) < 0.9, "the store has no probabilities of its own"
    (turn,) = found["turns"]
    assert found["written"] and turn["ratio"] is None and turn["adv"] is None
    assert turn["logp"] == pytest.approx([math.log(p) for p in ratio], rel=1e-3)
    other = ask(root, "tokens", run="plan", phase="rl", step=1, group=0, sample=0)
    assert not other["written"] and other["turns"][0]["adv"] is not None and min(other["turns"][0]["logp"]) < 0
    assert [s["written"] for s in ask(root, "run", run="plan")["stored"]] == [True, False]


def test_a_list_of_runs_says_which_phase_a_plan_is_in(root: Path) -> None:
    (run,) = ask(root, "runs")["runs"]
    assert (run["phase"], run["step"], run["steps"]) == ("rl", 5, 0)
    assert [p["steps"] for p in ask(root, "run", run="plan")["phases"]] == [3, 0, 5], (
        "of work between phases there are no steps"
    )


@needs_browser
def test_the_report_of_a_plan(browser: Any, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.html"
    file.write_text(report(Folder(root), "plan"), encoding="utf-8")
    tab = Tab(browser, file.as_uri())
    page = tab.open("")
    page.wait_for_selector(".chart canvas")
    page.screenshot(path=SHOTS / "report-plan-1280-light.png", full_page=True)
    expect(page.locator(".tile").first).to_contain_text("8")
    assert accessible(page) == []
    tab.open("#rollouts?run=plan&phase=sft")
    page.get_by_role("link", name="tokens").first.click()
    expect(page.get_by_text("from the data set")).to_be_visible()
    expect(page.locator(".token-facts")).to_contain_text("learned from")
    tab.open("#group?run=plan&phase=sft&step=1&group=0")
    expect(page.locator(".advantage")).to_have_count(0)
    tab.clean()
    tab.context.close()


def test_curves_of_a_claim_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seeds of A: step 1 has 1 and 3 (mean 2), step 2 only 5; the last phase of the last run counts, B has no reward."""
    runs = {
        "A, seed 1": {
            "first": {"train": {"reward": [9.0]}},
            "last": {"sft": {"reward": [8.0]}, "rl": {"reward": [1.0, 5.0]}},
        },
        "A, seed 2": {"last": {"rl": {"reward": [3.0, math.nan]}}},
        "B, seed 1": {"last": {"rl": {"length": [4.0]}}},
    }
    found = claim_curves.by_metric(runs)
    assert found["reward"] == [
        {"label": "A", "seeds": 2, "x": [1, 2], "mean": [2.0, 5.0], "low": [1.0, 5.0], "high": [3.0, 5.0]}
    ]
    assert [a["label"] for a in found["length"]] == ["B"]
    monkeypatch.setattr(claim_curves, "ROOT", tmp_path)
    folder = tmp_path / "claims" / "f" / "curves"
    folder.mkdir(parents=True)
    (folder / "x-1.json").write_text(json.dumps(runs))
    claim = {"file": "claims/f/x.py", "attempts": [{"attempt": 1}, {"attempt": 2}]}
    assert claim_curves.curves(claim) == {"attempt": 1, "metrics": found}
    (folder / "x-2.json").write_text("{broken")
    assert claim_curves.curves(claim) == {"attempt": 1, "metrics": found}
    assert (
        claim_curves.curves(None) is None
        and claim_curves.curves({"file": "claims/f/y.py", "attempts": [{"attempt": 1}]}) is None
    )
