"""Runs in a real browser: curves, warnings, comparing, live while one trains, chat."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

from posttrain.core.config import to_dict
from posttrain.page.chat import Chat, Model
from posttrain.page.folder import Folder
from posttrain.page.server import Page
from posttrain.runs.run import Run
from posttrain.train import train
from tests.page.browser import SHOTS, VIEWS, Tab, accessible, expect, needs_browser, until
from tests.page.model_server import ModelServer
from tests.runs import tiny_run

pytestmark = needs_browser


def test_a_run_as_a_person_reads_it(tab: Tab) -> None:
    page = tab.open(VIEWS["run"])
    expect(page.get_by_role("heading", level=1)).to_have_text("tiny")
    assert page.locator(".chart canvas").count() >= 8
    expect(page.get_by_role("figure").filter(has_text="seconds by stage")).to_be_visible()
    page.get_by_label("x axis").select_option("tokens")
    page.wait_for_url(re.compile("x=tokens"))
    page.wait_for_selector(".chart canvas")
    page.get_by_text("Settings (").click()
    expect(page.get_by_role("cell", name="count").or_(page.get_by_text("sampling.max_tokens"))).to_be_visible()
    page.locator(".chart", has_text="reward").first.locator(".u-over").click(position={"x": 4, "y": 40})
    tab.clean()


def test_a_curve_leads_to_its_step(tab: Tab) -> None:
    page = tab.open(VIEWS["run"])
    over = page.locator(".chart").filter(has=page.get_by_role("heading", name="reward", exact=True)).locator(".u-over")
    while (size := over.bounding_box()) is None:  # the first live event draws the charts again
        page.wait_for_timeout(50)
    over.click(position={"x": size["width"] - 2, "y": 60})
    page.wait_for_url(re.compile(r"#rollouts\?.*first=7&last=7"))
    expect(page.get_by_text("step 7 of 7")).to_be_visible()


def test_a_warning_leads_to_its_evidence(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    page.get_by_role("link", name="2 warnings").click()
    warning = page.locator(".warnings li").first
    expect(warning).to_contain_text("answers grow longer: 10 to 17 tokens")
    warning.get_by_role("link", name="answers").click()
    page.wait_for_url(re.compile("first=8&last=12.*shortest=10"))
    expect(page.locator("article.answer").first).to_contain_text("step 8")
    tab.clean()


def test_runs_by_speed(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    mine = page.locator('tr[data-run="plan"]')
    expect(mine.locator("td").nth(-2)).to_have_text("50")
    field = page.get_by_label("tokens/s, at least")
    for least, count in (("50", 1), ("50.5", 0), ("", 1)):
        field.fill(least)
        field.press("Enter")
        expect(mine).to_have_count(count)
    page.get_by_label("sort").select_option("speed")
    page.wait_for_url(re.compile("sort=speed"))
    tab.clean()


def test_choose_and_compare(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    page.get_by_label("choose tiny").check()
    page.get_by_label("choose plan").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_selector(".chart canvas")
    expect(page.get_by_role("heading", name=re.compile("Settings that differ"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^task"))).to_contain_text("sums")
    tab.clean()


def test_chat_side_by_side(browser: Any, shown: Path) -> None:
    """Each model has its own conversation; what it says is text, as it is written; a failure gives the message back."""
    servers = {name: ModelServer() for name in "ab"}
    page = Page(Folder(shown), port=0, chat=Chat([Model(n, s.port, "k") for n, s in servers.items()])).start()
    tab = Tab(browser, page.url)
    try:
        view = tab.open("#runs")
        view.get_by_role("link", name="Chat").click()
        a, b = (view.get_by_role("region", name=name) for name in "ab")
        expect(view.get_by_role("button", name="Stop")).to_be_hidden()
        view.get_by_label("Message").fill("hold")
        view.keyboard.press("Enter")
        for region in (a, b):
            expect(region.locator(".writes .text")).to_have_text("you")
        view.screenshot(path=SHOTS / "chat-writing-1280-light.png", full_page=True)
        assert not accessible(view)
        view.get_by_role("link", name="Runs", exact=True).click()
        view.wait_for_selector("tr[data-run]")
        view.get_by_role("link", name="Chat").click()  # while they are still writing
        servers["b"].go_on.set()
        expect(b).to_contain_text("you said hold")
        expect(b).to_contain_text("3 tokens")
        view.get_by_role("button", name="Stop").click()
        expect(a).to_contain_text("stopped by you")
        assert servers["a"].left.wait(10), "the model was told"
        expect(view.get_by_role("button", name="Stop")).to_be_hidden()
        attack = "<script>window.hacked=1</script> \u202e"
        view.get_by_label("Message").fill(attack)
        view.get_by_role("button", name="Send").click()
        expect(a).to_contain_text("you said <script>window.hacked=1</script>")
        assert [m["content"] for m in servers["a"].seen[-1][2]["messages"]] == ["hold", "you", attack.strip()]
        view.screenshot(path=SHOTS / "chat-1280-light.png", full_page=True)
        assert not accessible(view)
        tab.clean()
        servers["b"].stop()
        view.get_by_label("Message").fill("again")
        view.keyboard.press("Enter")
        expect(view.get_by_role("alert")).to_contain_text("the server of b has ended")
        expect(view.get_by_label("Message")).to_have_value("again")
        view.get_by_role("button", name="New conversation").click()
        expect(view.get_by_text("Nothing said yet.")).to_have_count(2)
    finally:
        tab.context.close()
        page.stop()
        servers["a"].stop()


def test_live_while_a_run_trains(browser: Any, tmp_path: Path) -> None:
    """Each step is let through one at a time; the page shows it without being asked to."""
    gate = threading.Semaphore(2)

    class Gate:
        def on_step(self, loop: Any, step: int, metrics: Any) -> None:
            loop.run.store.sync()
            assert gate.acquire(timeout=60)

    def run() -> None:
        with Run(tmp_path / "live", to_dict(tiny_run.config())) as run:
            loop = tiny_run.build(run)
            loop.callbacks = [Gate()]
            train(loop)
            run.finish("train")

    thread = threading.Thread(target=run)
    thread.start()
    while not (tmp_path / "live" / "run.sqlite").exists():
        thread.join(0.05)
        assert thread.is_alive()
    page_ = Page(Folder(tmp_path), port=0).start()
    tab = Tab(browser, page_.url)
    try:
        page = tab.open("#runs")
        expect(page.locator(".state.running")).to_be_visible(timeout=15_000)
        page = tab.open("#run?run=live")
        expect(page.locator(".tile").first).to_contain_text(re.compile(r"[123] / 7"), timeout=15_000)
        gate.release(3)
        expect(page.locator(".tile").first).to_contain_text("6 / 7", timeout=15_000)
        gate.release(10)
        expect(page.locator(".facts .state")).to_have_text(
            "stopped", timeout=20_000
        )  # no summary was written: it is told as it is
        expect(page.locator(".tile").first).to_contain_text("7 / 7")
        tab.clean()
    finally:
        gate.release(100)
        thread.join(60)
        tab.context.close()
        page_.stop()


def test_a_tab_that_nobody_sees_holds_no_connection(tab: Tab, served: Page) -> None:
    page = tab.open(VIEWS["run"])
    expect(page.locator("body[data-stream=live]")).to_have_count(1)
    before = served.app.streams
    hide = "hidden => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); document.dispatchEvent(new Event('visibilitychange')) }"
    page.evaluate(hide, True)
    until(page, lambda: served.app.streams == before - 1)
    page.evaluate(hide, False)
    until(page, lambda: served.app.streams == before)
    tab.clean()
