"""The page in a real browser: every view of a run that was trained here, live, by keyboard, narrow and wide, dark and light, attacked.

It needs playwright and a Chromium of the system (`make test-page` installs both); without them it is skipped, unless PAGE_TESTS=must, as
in CI. Screenshots are written to $PAGE_SHOTS (build/page).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.config import to_dict
from posttrain.page.chat import Chat, Model
from posttrain.page.folder import Folder
from posttrain.page.report import report
from posttrain.page.server import Page
from posttrain.runs.run import Run
from posttrain.train import train
from tests.page import made
from tests.runs import tiny_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
MUST = os.environ.get("PAGE_TESTS") == "must"
SHOTS = Path(os.environ.get("PAGE_SHOTS", Path(__file__).parents[2] / "build" / "page"))
try:
    from playwright.sync_api import expect, sync_playwright
except ImportError:
    sync_playwright = None  # type: ignore[assignment]
if not MUST:
    pytestmark = pytest.mark.skipif(
        sync_playwright is None or CHROMIUM is None, reason="needs playwright and chromium: make test-page"
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
    "compare": "#compare?runs=tiny,attacked",
    "field": "#field?q=ppo",
    "system": "#system?name=dapo",
    "missing": "#run?run=nothing",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained, one with two phases, one whose texts and one whose name are attacks."""
    folder = tmp_path_factory.mktemp("runs")
    tiny_run.start(folder / "tiny")
    made.write(folder, "plan", steps=12, phases=("sft", "rl"))
    made.write(folder, "attacked", steps=9)
    made.write(folder, HOSTILE, steps=3)
    return folder


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[Page]:
    page = Page(Folder(root), port=0).start()
    yield page
    page.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    assert CHROMIUM is not None and sync_playwright is not None, "PAGE_TESTS=must: install playwright and chromium"
    SHOTS.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


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


@pytest.fixture
def tab(browser: Any, served: Page) -> Iterator[Tab]:
    made_ = Tab(browser, served.url)
    yield made_
    made_.context.close()


AXE = (Path(__file__).parent / "axe.min.js").read_text() + "; 0"


def accessible(page: Any, *rules: str) -> list[str]:
    """What axe-core finds (by these rules alone), one line each."""
    page.evaluate(AXE)
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{v['id']}: {v['help']}: {n['html'][:120]} {n.get('failureSummary', '')[:200]}"
        for v in found["violations"]
        for n in v["nodes"][:3]
    ]


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
            found += [f"{name}: {line}" for line in (accessible(page, "color-contrast") if dark else accessible(page))]
    tab.context.close()
    assert not found, "\n".join(found)


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
    size = over.bounding_box()
    over.click(position={"x": size["width"] - 2, "y": 60})
    page.wait_for_url(re.compile(r"#rollouts\?.*first=7&last=7"))
    expect(page.get_by_text("step 7 of 7")).to_be_visible()


def test_filters_and_pages_of_answers(tab: Tab) -> None:
    page = tab.open("#rollouts?run=attacked&phase=train")
    expect(page.locator("article.answer")).to_have_count(50)
    page.get_by_role("button", name="more answers").click()
    expect(page.locator("article.answer")).to_have_count(100)
    page.get_by_label("order").select_option("worst")
    page.wait_for_url(re.compile("order=worst"))
    expect(page.locator("article .reward").first).to_have_text("0")
    page.get_by_label("reward from").fill("0.5")
    page.get_by_label("reward from").press("Enter")
    expect(page.locator("article .reward").first).to_have_text("0.5")
    page.get_by_label("Text in prompt or answer").fill("answer 3.")
    page.get_by_label("Text in prompt or answer").press("Enter")
    page.wait_for_url(re.compile("text=answer"))
    expect(page.locator("article.answer").first).to_contain_text("answer 3.")
    page.get_by_role("link", name="clear filters").click()
    expect(page.locator("article.answer")).to_have_count(50)
    page.get_by_label("reward from").fill("9")
    page.get_by_label("reward from").press("Enter")
    expect(page.get_by_text("No answer matches")).to_be_visible()
    tab.clean()


def test_the_brush(tab: Tab) -> None:
    page = tab.open("#rollouts?run=attacked&phase=train")
    over = page.locator("#scatter .u-over")
    over.wait_for()
    box = over.bounding_box()
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 5, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    expect(page.get_by_label("reward from")).not_to_have_value("")
    expect(page.locator("article.answer").first).to_be_visible()
    rewards = [float(x) for x in page.locator("article .reward").all_inner_texts()]
    assert rewards and min(rewards) > 0.2
    tab.clean()


def test_tokens_by_mouse_and_by_keyboard(tab: Tab) -> None:
    page = tab.open("#tokens?run=attacked&phase=train&step=1&group=1&sample=0")
    facts = page.locator(".token-facts")
    tokens = page.locator(".tok")
    expect(tokens).to_have_count(6)
    tokens.nth(2).hover()
    expect(facts).to_contain_text("3 of 6")
    expect(facts).to_contain_text("−0.375")
    tokens.nth(2).click()
    page.keyboard.press("ArrowRight")
    expect(facts).to_contain_text("4 of 6")
    expect(tokens.nth(3)).to_be_focused()
    expect(facts.locator(".piece")).to_have_text("\\\\xe2\\\\x82")
    page.keyboard.press("End")
    expect(facts).to_contain_text("6 of 6")
    least = tokens.nth(5).get_attribute("data-bin")
    assert least == "q3", "p = exp(-4) = 0.018 is at least 0.01 and below 0.1"
    page.keyboard.press("a")
    assert tokens.nth(5).get_attribute("data-bin") == "d2", "an advantage of -0.375 is between -0.5 and -0.1"
    page.keyboard.press("e")
    assert tokens.nth(5).get_attribute("data-bin") == "q4", "an entropy of 2 is the most"
    page.locator("#colour").select_option("ratio")
    assert tokens.nth(0).get_attribute("data-bin") == "d1", "a ratio of 0.9 is between 0.8 and 0.95"
    tokens.nth(5).click()
    page.keyboard.press("t")
    assert tokens.nth(5).get_attribute("data-bin") == "q3", "a KL of 0.5 is between 0.1 and 1"
    page.keyboard.press("v")
    assert tokens.nth(5).get_attribute("data-bin") == "d5", "a value of 0.75 is between 0.5 and 1"
    assert tokens.nth(0).get_attribute("data-bin") == "d0", "a value of -2 is the least"
    expect(facts).to_contain_text("+0.75")
    page.locator(".rare button").first.click()
    expect(facts).to_contain_text("6 of 6")
    tab.clean()


def test_by_keyboard_from_the_runs_to_a_token_and_back(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    page.keyboard.press("/")
    page.keyboard.type("attacked")
    expect(page.locator("tr[data-run]")).to_have_count(1)
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"#run\?run=attacked"))
    page.wait_for_selector("article.answer")
    page.keyboard.press("j")
    page.keyboard.press("g")
    page.wait_for_url(re.compile(r"#group\?"))
    page.wait_for_selector(".side-by-side article")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"#tokens\?"))
    page.wait_for_selector(".tok")
    page.keyboard.press("]")
    page.wait_for_url(re.compile("sample=1"))
    for after in ("group", "rollouts", "run", "runs"):
        page.wait_for_selector("main:not([aria-busy]) .view")
        page.keyboard.press("Escape")
        page.wait_for_url(re.compile(f"#{after}"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    tab.clean()


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


def test_chat_side_by_side(browser: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model has its own conversation; what it says is text; a failure gives the message back."""
    asked: list[tuple[str, int]] = []
    go_on = threading.Event()

    def forward(model: Model, sent: dict[str, Any]) -> tuple[dict[str, Any], int]:
        asked.append((model.name, len(sent["messages"])))
        assert go_on.wait(30)
        if model.name == "b" and len(asked) > 2:
            return {"error": "b has ended"}, 502
        return {"text": f"<script>window.hacked=1</script> by {model.name}", "end": "length", "tokens": 7}, 200

    monkeypatch.setattr("posttrain.page.chat.forward", forward)
    page = Page(Folder(root), port=0, chat=Chat([Model("a", 1, ""), Model("b", 1, "")])).start()
    tab = Tab(browser, page.url)
    try:
        view = tab.open("#runs")
        view.get_by_role("link", name="Chat").click()
        view.get_by_label("Message").fill("hello")
        view.keyboard.press("Enter")
        expect(view.get_by_text("…", exact=True)).to_have_count(2)
        view.get_by_role("link", name="Runs", exact=True).click()
        view.wait_for_selector("tr[data-run]")
        view.get_by_role("link", name="Chat").click()  # while they are still asked
        view.wait_for_selector(".talk")
        go_on.set()
        for name in "ab":
            expect(view.get_by_role("region", name=name)).to_contain_text(f"<script>window.hacked=1</script> by {name}")
            expect(view.get_by_role("region", name=name)).to_contain_text("7 tokens, cut off")
        view.screenshot(path=SHOTS / "chat-1280-light.png", full_page=True)
        assert not accessible(view)
        tab.clean()
        view.get_by_label("Message").fill("again")
        view.get_by_role("button", name="Send").click()
        expect(view.get_by_role("alert")).to_have_text("b has ended")
        expect(view.get_by_label("Message")).to_have_value("again")
        assert sorted(asked) == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]
        view.get_by_role("button", name="New conversation").click()
        expect(view.get_by_text("Nothing said yet.")).to_have_count(2)
    finally:
        tab.context.close()
        page.stop()


def test_choose_and_compare(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    page.get_by_label("choose tiny").check()
    page.get_by_label("choose plan").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.wait_for_selector(".chart canvas")
    expect(page.get_by_role("heading", name=re.compile("Settings that differ"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^task"))).to_contain_text("sums")
    tab.clean()


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


def until(page: Any, done: Callable[[], bool]) -> None:
    for _ in range(200):
        if done():
            return
        page.wait_for_timeout(50)
    raise AssertionError("it did not happen in 10 s")


def test_a_report_opens_from_the_disk(browser: Any, root: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report(Folder(root), "attacked"), encoding="utf-8")
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
