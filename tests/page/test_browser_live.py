"""Runs that change while somebody looks: their first step, later metrics, deleted, begun anew, several at once."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.config import Config, to_dict
from posttrain.page import live
from posttrain.page.folder import Folder
from posttrain.page.server import Page
from posttrain.runs.lock import hold, release
from posttrain.runs.store import Store
from tests.page import made
from tests.page.browser import SHOTS, Tab, accessible, expect, needs_browser, until

pytestmark = needs_browser


class Going:
    """A run that is being written: it holds its folder, and steps are written one at a time."""

    def __init__(self, root: Path, name: str) -> None:
        self.where, self.step = root / name, 0
        self.where.mkdir()
        config = to_dict(Config(name=name, steps=40)) | {"method": "grpo", "task": "sums", "model": "pocket"}
        (self.where / "config.json").write_text(json.dumps(config))
        self.lock = hold(self.where, self.where)
        self.store = Store(self.where / "run.sqlite")
        self.store.begin("train", "policy", True, {"numeric": 1.0})

    def log(self, count: int = 1, **more: float) -> None:
        for _ in range(count):
            metrics = {"reward": self.step / 40, "length": 8.0, **more}
            self.store.log("train", self.step, metrics, made.groups(self.step, 2, 2), 0.5)
            self.step += 1

    def end(self) -> None:
        self.store.close()
        release(*self.lock)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def tab(browser: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tab]:
    monkeypatch.setattr(live, "POLL", 0.05)
    monkeypatch.setattr(live, "IDLE", 0.05)
    served = Page(Folder(folder), port=0).start()
    made_ = Tab(browser, served.url)
    yield made_
    made_.context.close()
    served.stop()


def chart(page: Any, title: str) -> Any:
    return page.locator("figure.chart").filter(has=page.get_by_role("heading", name=title, exact=True))


def test_what_comes_later_is_shown(tab: Tab, folder: Path) -> None:
    """Opened before the first step; then curves, answers, a metric and a held-out score that were not there before."""
    run = Going(folder, "new")
    try:
        page = tab.open("#run?run=new")
        expect(page.get_by_text("No step is done yet")).to_be_visible()
        assert not accessible(page)
        page.screenshot(path=SHOTS / "no-step-1280-light.png", full_page=True)
        run.log()
        expect(chart(page, "reward").locator("canvas")).to_be_visible(timeout=10_000)
        expect(page.get_by_role("heading", name="What it wrote")).to_be_visible(timeout=10_000)
        expect(page.locator("article.answer").first).to_contain_text("answer 0.0.0")
        run.log(kl=0.5, accuracy=0.25)
        expect(chart(page, "KL to the reference").locator("canvas")).to_be_visible(timeout=10_000)
        expect(chart(page, "held-out accuracy")).to_contain_text("25%")
        run.log(3)
        expect(page.locator(".tile").first).to_contain_text("5 / 40", timeout=10_000)
        expect(chart(page, "reward")).to_contain_text("0 → 0.1")
        tab.clean()
    finally:
        run.end()


def test_a_zoom_stays_while_steps_come(tab: Tab, folder: Path) -> None:
    run = Going(folder, "zoom")
    try:
        run.log(20)
        page = tab.open("#run?run=zoom")
        over = chart(page, "reward").locator(".u-over")
        expect(over).to_be_visible()
        box = over.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 40, steps=4)
        page.mouse.up()
        ends = "() => { const s = [...document.querySelectorAll('.plot')].find((p) => p.closest('figure').innerText.startsWith('reward')).plot.scales.x; return [s.min, s.max]; }"
        before = page.evaluate(ends)
        assert 4 < before[0] < before[1] < 13, before
        run.log(2)
        expect(page.locator(".tile").first).to_contain_text("22 / 40", timeout=10_000)
        page.wait_for_timeout(300)
        assert page.evaluate(ends) == before
        tab.clean()
    finally:
        run.end()


def test_the_keyboard_stays_on_a_curve_while_another_appears(tab: Tab, folder: Path) -> None:
    run = Going(folder, "walked")
    try:
        run.log(4, kl=0.0)
        page = tab.open("#run?run=walked")
        curve = chart(page, "tokens per answer").get_by_role("slider")
        curve.focus()
        page.keyboard.press("Home")
        assert chart(page, "KL to the reference").count() == 0
        run.log(2, kl=0.5)
        expect(chart(page, "KL to the reference").locator("canvas")).to_be_visible(timeout=10_000)
        expect(curve).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(curve).to_have_attribute("aria-valuenow", "2")
        tab.clean()
    finally:
        run.end()


def test_a_run_that_is_deleted_and_begun_anew(tab: Tab, folder: Path) -> None:
    run = Going(folder, "same")
    run.log(4, loss=5.0)
    page = tab.open("#run?run=same")
    expect(page.locator(".tile").first).to_contain_text("4 / 40")
    run.end()
    shutil.rmtree(folder / "same")
    expect(page.get_by_role("alert").filter(has_text="gone: deleted or moved")).to_be_visible(timeout=10_000)
    expect(chart(page, "reward").locator("canvas")).to_be_visible()  # what was read before stays
    run = Going(folder, "same")
    try:
        run.log(6, loss=7.0)
        expect(page.get_by_text("gone: deleted or moved")).to_have_count(0, timeout=10_000)
        expect(page.locator(".tile").first).to_contain_text("6 / 40", timeout=10_000)
        expect(chart(page, "loss")).to_contain_text("7 → 7", timeout=10_000)
        run.store.forget("train", 2)
        expect(page.locator(".tile").first).to_contain_text("2 / 40", timeout=10_000)
        expect(chart(page, "reward")).to_contain_text("0 → 0.025")
    finally:
        run.end()


def test_two_runs_at_once(tab: Tab, browser: Any, folder: Path) -> None:
    one, two = Going(folder, "one"), Going(folder, "two")
    other = Tab(browser, tab.base)
    try:
        one.log(2)
        two.log(3)
        first, second = tab.open("#run?run=one"), other.open("#run?run=two")
        one.log(5)
        two.log(1)
        expect(first.locator(".tile").first).to_contain_text("7 / 40", timeout=10_000)
        expect(second.locator(".tile").first).to_contain_text("4 / 40", timeout=10_000)
        tab.clean()
        other.clean()
    finally:
        other.context.close()
        one.end()
        two.end()


def test_the_list_keeps_the_place_of_the_keyboard(tab: Tab, folder: Path) -> None:
    """Rows are made anew where a run goes on; whoever stands on one stays there."""
    made.write(folder, "done", steps=2)
    run = Going(folder, "going")
    try:
        run.log(2)
        page = tab.open("#runs")
        expect(page.locator("tr[data-run]")).to_have_count(2)
        focused = "() => [document.activeElement.closest('tr')?.dataset.run, document.activeElement.tagName]"
        for name, selector, tag in (
            ("going", "a.row-link", "A"),
            ("done", "a.row-link", "A"),
            ("going", "input", "INPUT"),
        ):
            page.locator(f'tr[data-run="{name}"] {selector}').focus()
            run.log()
            expect(page.locator('tr[data-run="going"]')).to_contain_text(f"{run.step}/40", timeout=10_000)
            assert page.evaluate(focused) == [name, tag]
        page.get_by_label("choose going").check()
        run.log()
        expect(page.locator('tr[data-run="going"]')).to_contain_text(f"{run.step}/40", timeout=10_000)
        assert page.get_by_label("choose going").is_checked()
        tab.clean()
    finally:
        run.end()


def test_the_first_run_appears_in_an_empty_list(tab: Tab, folder: Path) -> None:
    page = tab.open("#runs")
    expect(page.get_by_text("No runs here yet")).to_be_visible()
    made.write(folder, "first", steps=1)
    expect(page.locator('tr[data-run="first"]')).to_be_visible(timeout=10_000)
    made.write(folder, "second", steps=1, method="dapo")
    expect(page.locator('tr[data-run="second"]')).to_be_visible(timeout=10_000)
    page.locator("select[name=method]").select_option("dapo")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    tab.clean()


def test_of_many_runs_only_those_in_sight_are_asked_for(tab: Tab, folder: Path) -> None:
    whole = made.write(folder, "run-00", steps=1)
    for k in range(1, 60):
        shutil.copytree(whole, folder / f"run-{k:02d}")
    page = tab.open("#runs")
    expect(page.locator("tr[data-run]")).to_have_count(60)
    page.wait_for_timeout(500)
    asked = [url for url in tab.asked if "/api/warnings" in url]
    assert 5 <= len(asked) < 40, len(asked)
    page.locator('tr[data-run="run-00"]').scroll_into_view_if_needed()
    until(page, lambda: any("run-00" in url for url in tab.asked if "/api/warnings" in url) or len(tab.asked) > 120)
    for k in range(8):
        page.get_by_label(f"choose run-{k:02d}").check()
    page.get_by_role("link", name="Compare the first 6 of 8").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    expect(page.locator("ul.chips li")).to_have_count(6)
    tab.clean()


def test_the_server_ends_while_the_list_is_open(browser: Any, tmp_path: Path) -> None:
    made.write(tmp_path, "one", steps=1)
    served = Page(Folder(tmp_path), port=0).start()
    tab = Tab(browser, served.url)
    page = tab.open("#runs")
    served.stop()
    expect(page.get_by_text("The page has lost its server")).to_be_visible(timeout=10_000)
    expect(page.locator('tr[data-run="one"]')).to_be_visible()
    assert not [
        line for line in tab.said if "Uncaught" in line or (line[:6] == "Failed" and "ERR_CONNECTION" not in line)
    ]
    tab.context.close()


def test_names_with_commas_are_compared(tab: Tab, folder: Path) -> None:
    for name in ("a,b", "c%2Cd"):
        made.write(folder, name, steps=2)
    page = tab.open("#runs")
    for name in ("a,b", "c%2Cd"):
        page.get_by_label(f"choose {name}", exact=True).check()
    page.get_by_role("link", name="Compare 2 runs").click()
    expect(page.locator("ul.chips a")).to_have_text([re.compile("a,b|c%2Cd")] * 2)
    tab.clean()


def test_runs_by_held_out_score(tab: Tab, folder: Path) -> None:
    """Both end at 90%: as it is shown, in percent."""
    made.write(folder, "ninety", steps=1)
    page = tab.open("#runs")
    field = page.get_by_label("held out, at least")
    for least, count in (("90", 1), ("90.5", 0), ("", 1)):
        field.fill(least)
        field.press("Enter")
        expect(page.locator('tr[data-run="ninety"]')).to_have_count(count)
    tab.clean()
