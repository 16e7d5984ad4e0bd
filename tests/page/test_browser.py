"""Every view in a real browser: narrow and wide, dark and light, attacked, accessible; a report from the disk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.page.folder import Folder
from posttrain.page.report import report
from posttrain.page.server import Page
from tests.page.browser import HOSTILE, SHOTS, VIEWS, Tab, accessible, expect, needs_browser

pytestmark = needs_browser


@pytest.mark.parametrize("width, dark", [(1280, False), (1280, True), (380, False), (2560, True)])
def test_every_view(browser: Any, served: Page, width: int, dark: bool) -> None:
    tab = Tab(browser, served.url, width, dark)
    found: list[str] = []
    for name, view in VIEWS.items():
        page = tab.open(view)
        if name in ("run", "compare", "plan"):
            page.wait_for_selector(".chart canvas")
        page.screenshot(path=SHOTS / f"{name}-{width}-{'dark' if dark else 'light'}.png", full_page=True)
        if name == "missing":
            expect(page.get_by_role("alert")).to_contain_text("no run named 'nothing'")
            tab.said = [
                line for line in tab.said if "400" not in line
            ]  # the browser tells of the refused request itself
        tab.clean()
        if width == 1280:
            found += [f"{name}: {line}" for line in accessible(page)]
    tab.context.close()
    assert not found, "\n".join(found)


def test_attacks_are_shown_as_text(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    expect(page.get_by_role("link", name=HOSTILE)).to_be_visible()
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(HOSTILE)
    page.get_by_text("Events (").click()
    expect(page.get_by_text("saved <script>window.hacked=1</script>")).to_be_visible()
    tab.clean()
    tab.open("#rollouts?run=attacked&phase=train&limit=100")
    page.get_by_role("button", name="more answers").click()
    expect(page.locator("article.answer")).to_have_count(100)
    text = page.locator(".answers").inner_text()
    for shown in (
        "<script>window.hacked=1</script>",
        "<img src=x onerror='window.hacked=1'>",
        "U+202E",
        "U+001B",
        "U+0000",
        "U+200B",
        "U+2028",
        "</script><svg onload",
    ):
        assert shown in text, shown
    raw = page.locator(".answers").evaluate("n => n.textContent")
    assert not re.search("[\u202a-\u202e\u2066-\u2069\u200b\ufeff\x00\x1b]", raw)
    assert page.locator("main script, main img, main svg[onload]").count() == 0
    tab.clean()


def test_dark_and_light_by_the_button(tab: Tab) -> None:
    page = tab.open(VIEWS["run"])
    page.wait_for_selector(".chart canvas")
    before = page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor")
    page.get_by_role("button", name="dark or light").click()
    assert page.evaluate("getComputedStyle(document.body.parentElement).backgroundColor") != before
    assert page.locator(".chart canvas").count() >= 8
    page.reload()
    page.wait_for_selector(".chart canvas")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark", "it is remembered"
    tab.clean()


def test_a_report_opens_from_the_disk(browser: Any, shown: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report(Folder(shown), "attacked"), encoding="utf-8")
    tab = Tab(browser, file.as_uri())
    page = tab.open("")
    page.wait_for_selector(".chart canvas")
    page.screenshot(path=SHOTS / "report-1280-light.png")
    assert accessible(page) == []
    tab.open("#rollouts?run=attacked&phase=train&order=best")
    expect(page.locator("article.answer").first).to_be_visible()
    page.get_by_role("link", name="tokens").first.click()
    page.wait_for_selector(".tok")
    page.get_by_role("link", name="its group").click()
    page.wait_for_selector(".side-by-side article")
    assert all(url.startswith(("file:", "data:")) for url in tab.asked), tab.asked
    tab.clean()
    tab.context.close()


def test_nothing_here_yet(browser: Any, tmp_path: Path) -> None:
    page_ = Page(Folder(tmp_path), port=0).start()
    tab = Tab(browser, page_.url)
    try:
        page = tab.open("")
        expect(page.get_by_text("No runs here yet")).to_be_visible()
        page.screenshot(path=SHOTS / "empty-1280-light.png")
        assert accessible(page) == []
        tab.clean()
        page_.stop()
        page.get_by_role("link", name="Field").click()
        expect(page.get_by_role("alert")).to_contain_text("The page has lost its server")
    finally:
        tab.context.close()
