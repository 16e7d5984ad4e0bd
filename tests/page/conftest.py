"""What the tests in a browser share: the runs that are looked at, the page that serves them, a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.page.folder import Folder
from posttrain.page.server import Page
from tests.page import browser as machine
from tests.page import episodes, made, played
from tests.page.browser import HOSTILE, SHOTS, Tab
from tests.page.test_sheets import sheets_of
from tests.runs import tiny_run


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs that were trained (one with tools, one of two roles), one with two phases, one of turns, trees and pictures, one whose texts
    and one whose name are attacks."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_run.start(folder / "tiny")
    made.write(folder, "plan", steps=12, phases=("sft", "rl"))
    made.write(folder, "attacked", steps=9)
    made.write(folder, HOSTILE, steps=3)
    episodes.write(folder)
    played.with_tools(folder)
    played.of_roles(folder)
    sheets_of(folder)
    return folder


@pytest.fixture(scope="module")
def served(shown: Path) -> Iterator[Page]:
    page = Page(Folder(shown), port=0).start()
    yield page
    page.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For a module: while it is there, no other event loop can run in this thread."""
    assert machine.CHROMIUM is not None and machine.sync_playwright is not None, "PAGE_TESTS=must: install playwright and chromium"  # fmt: skip
    SHOTS.mkdir(parents=True, exist_ok=True)
    with machine.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=machine.CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def tab(browser: Any, served: Page) -> Iterator[Tab]:
    made_ = Tab(browser, served.url)
    yield made_
    made_.context.close()
