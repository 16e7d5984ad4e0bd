"""Real runs of several turns: tools that were called, and roles that took turns, in order of time."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Any

from posttrain.page.api import answer
from posttrain.page.folder import Folder
from posttrain.page.report import report
from posttrain.runs.episode_rows import moves_of
from tests.page import episodes
from tests.page.browser import SHOTS, VIEWS, Tab, expect, needs_browser
from tests.page.played import ATTACK, ORDER

ONE = {"phase": "train", "step": "1", "group": "0"}


def ask(root: Path, address: str, **params: object) -> Any:
    return answer(Folder(root), address, ONE | {k: str(v) for k, v in params.items()})


def test_an_episode_in_order_of_time(shown: Path) -> None:
    """Proposer, policy twice, proposer, policy; each with its own text, and what the store has of it."""
    found = ask(shown, "episode", run="roles", sample=5)
    assert found["ordered"] and found["episode"] == 2 and [r["sample_index"] for r in found["roles"]] == [4, 5]
    whole = [t["role"] for t in found["turns"]]
    assert whole == list(ORDER[: len(whole)]) and len(whole) >= 2
    db = sqlite3.connect(shown / "roles" / "run.sqlite")
    query = (
        "SELECT t.text FROM turns t JOIN rollouts r USING (id) WHERE step = 0 AND group_index = 0 AND sample_index = ? "
        "AND t.turn = ?"
    )
    for t in found["turns"]:
        kept = db.execute(query, (t["sample_index"], t["turn"])).fetchone()[0]
        assert kept is None or t["text"] == kept
    assert all(f"turn {k}" in t["seen"] for k, t in enumerate(found["turns"]) if k), "each saw what was said before it"
    assert ask(shown, "episode", run="roles", sample=4)["turns"] == found["turns"], "whichever role one comes from"


def test_every_episode_of_the_run_is_in_order(shown: Path) -> None:
    lengths = set()
    for group in range(3):
        for sample in range(0, 8, 2):
            found = ask(shown, "episode", run="roles", group=group, sample=sample)
            roles = [t["role"] for t in found["turns"]]
            assert roles == list(ORDER[: len(roles)])
            lengths.add(len(roles))
    assert 5 in lengths, "some were played to their end"


def test_where_nobody_wrote_down_who_moved_when(shown: Path) -> None:
    """A run of an earlier version: role after role, and it says so."""
    found = ask(shown, "episode", run="episodes", group=2, sample=0)
    assert not found["ordered"] and found["turns"][0]["role"] == "proposer"
    alone = ask(shown, "episode", run="episodes", sample=1)
    assert alone["ordered"] and [t["turn"] for t in alone["turns"]] == [0, 1, 2]
    assert [t["credit"] for t in alone["turns"]] == [-1.0, 0.0, 1.0], (
        "the middle of turn 2 is not the policy's own: 0 all the same"
    )


def test_what_is_no_order_is_not_written() -> None:
    (r, _) = episodes.tools().rollouts
    for odd in ([0, 1], "abc", [0, 1, True], [0, 1, 2.0], None, 5):
        r.info["order"] = odd
        assert moves_of(1, r) == []
    r.info["order"] = (0, 2, 3)
    assert moves_of(1, r) == [(1, "[0, 2, 3]")]


def test_tools_that_a_run_called(shown: Path) -> None:
    """6*7 by the calculator, a call that it refuses, an answer; rewards and advantages are those of the run."""
    found = ask(shown, "tokens", run="tools", sample=0)
    first, second, last = found["turns"]
    assert [c["result"] for c in first["calls"]] == ["42"] and json.loads(first["calls"][0]["arguments"]) == {
        "expression": "6*7"
    }
    assert second["calls"][0]["result"].startswith("error: cannot compute") and not last["calls"]
    assert "42" in "".join(found["pieces"][i] for i in second["seen"])
    db = sqlite3.connect(shown / "tools" / "run.sqlite")
    total, adv = db.execute(
        "SELECT total, adv FROM rollouts WHERE step = 0 AND group_index = 0 AND sample_index = 0"
    ).fetchone()
    assert found["answer"]["total"] == total and abs(found["answer"]["adv"] - adv) < 1e-4
    text = "".join(found["pieces"][i] for t in found["turns"] for i in t["tokens"])
    assert text.count("<tool_call>") == 2 and text.endswith(f"{'42' if total else '41'}<end>")


@needs_browser
def test_calls_in_the_browser(tab: Tab) -> None:
    page = tab.open(VIEWS["called"])
    calls = page.locator("details.call")
    expect(calls).to_have_count(2)
    expect(calls.nth(0)).to_contain_text('calculator({"expression": "6*7"})')
    expect(calls.nth(0)).not_to_have_class(re.compile("fault"))
    calls.nth(0).locator("summary").click()
    expect(calls.nth(0).locator("pre").last).to_have_text("42")
    expect(calls.nth(1)).to_contain_text("failed")
    calls.nth(1).locator("summary").click()
    expect(calls.nth(1).locator("pre").last).to_contain_text(f"error: cannot compute '{ATTACK}'")
    page.screenshot(path=SHOTS / "calls-open-1280-light.png", full_page=True)
    page.get_by_role("link", name="whole episode").click()
    expect(page.locator("ol.moves > li")).to_have_count(3)
    tab.clean()


@needs_browser
def test_roles_in_the_browser(tab: Tab) -> None:
    page = tab.open("#group?run=roles&phase=train&step=1&group=0")
    page.get_by_role("region", name="Episode 2").get_by_role("link", name="as it went").click()
    page.wait_for_url(re.compile("#episode.*sample=2"))
    moves = page.locator("ol.moves > li > header b")
    moves.first.wait_for()
    names = moves.all_inner_texts()
    assert names == list(ORDER[: len(names)]) and len(names) >= 2
    page.get_by_role("link", name="tokens of turn 2").click()
    page.wait_for_url(re.compile("#tokens.*sample=3"))
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("#group"))
    tab.clean()


@needs_browser
def test_an_episode_in_a_report(browser: Any, shown: Path, tmp_path: Path) -> None:
    file = tmp_path / "roles.html"
    file.write_text(report(Folder(shown), "roles"), encoding="utf-8")
    tab = Tab(browser, file.as_uri())
    page = tab.open("#episode?run=roles&phase=train&step=1&group=0&sample=1")
    names = page.locator("ol.moves > li > header b").all_inner_texts()
    assert names == list(ORDER[: len(names)]) and names
    tab.clean()
    tab.context.close()
