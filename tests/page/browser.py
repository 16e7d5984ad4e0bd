"""A tab of a real browser for the tests of the page. It needs playwright and a Chromium of the system (`make test-page` installs both); without
them those tests are skipped, unless PAGE_TESTS=must, as in CI. Screenshots are written to $PAGE_SHOTS (build/page)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
MUST = os.environ.get("PAGE_TESTS") == "must"
SHOTS = Path(os.environ.get("PAGE_SHOTS", Path(__file__).parents[2] / "build" / "page"))
try:
    from playwright.sync_api import expect as expect
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]
needs_browser = pytest.mark.skipif(
    not MUST and (sync_playwright is None or CHROMIUM is None), reason="needs playwright and chromium: make test-page"
)
HOSTILE = "<img src=x onerror=window.hacked=1>"
VIEWS = {
    "runs": "#runs",
    "chat": "#chat",
    "run": "#run?run=tiny",
    "plan": "#run?run=plan",
    "rollouts": "#rollouts?run=tiny&phase=train&order=best",
    "group": "#group?run=attacked&phase=train&step=2&group=0",
    "tokens": "#tokens?run=tiny&phase=train&step=7&group=0&sample=1",
    "turns": "#tokens?run=episodes&phase=train&step=1&group=0&sample=1",
    "called": "#tokens?run=tools&phase=train&step=1&group=0&sample=1",
    "episode": "#episode?run=roles&phase=train&step=1&group=0&sample=1",
    "tree": "#group?run=episodes&phase=train&step=1&group=1",
    "roles": "#group?run=episodes&phase=train&step=1&group=2",
    "drawn": "#tokens?run=episodes&phase=train&step=1&group=3&sample=1",
    "compare": "#compare?runs=tiny,attacked",
    "field": "#field?q=ppo",
    "system": "#system?name=dapo",
    "sheets": "#sheets",
    "missing": "#run?run=nothing",
}


class Tab:
    """A tab that remembers everything the console said, and every request to another host."""

    def __init__(self, browser: Any, base: str, width: int = 1280, dark: bool = False) -> None:
        self.context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
        )
        self.page, self.base = self.context.new_page(), base
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.said.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.said.append(str(e)))
        self.page.on("request", lambda r: self.asked.append(r.url))

    def open(self, view: str) -> Any:
        self.page.goto(self.base + view)
        self.page.wait_for_selector("main:not([aria-busy]) .view")
        return self.page

    def clean(self) -> None:
        """No error in the console, nothing asked of another host, no attack that worked, nothing wider than the window."""
        assert not self.said, self.said
        assert all(url.startswith((self.base, "data:", "blob:")) for url in self.asked), self.asked
        assert self.page.evaluate("window.hacked") is None
        assert self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


AXE = (Path(__file__).parent / "axe.min.js").read_text() + "; 0"


def accessible(page: Any) -> list[str]:
    """What axe-core finds, by all its rules, one line each."""
    page.evaluate(AXE)
    found = page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{v['id']}: {v['help']}: {n['html'][:120]} {n.get('failureSummary', '')[:200]}"
        for v in found["violations"]
        for n in v["nodes"][:3]
    ]


def until(page: Any, done: Callable[[], bool]) -> None:
    for _ in range(200):
        if done():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not happen in 10 s")
