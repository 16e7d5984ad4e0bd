"""The page by keyboard, and what is typed wrong: curves are walked, zoomed and opened; a filter that is no number loses nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from posttrain.page.folder import Folder
from posttrain.page.server import Page
from posttrain.runs.store import Store
from tests.page import made
from tests.page.browser import VIEWS, Tab, accessible, expect, needs_browser, until

pytestmark = needs_browser


def plot(page: Any, title: str) -> Any:
    figure = page.locator("figure.chart").filter(has=page.get_by_role("heading", name=title, exact=True))
    expect(figure.locator("canvas")).to_be_visible()
    return figure.get_by_role("slider")


def told(page: Any, title: str, text: str) -> None:
    """What a curve says of the place it stands on; live events draw it again."""
    until(page, lambda: text in (plot(page, title).get_attribute("aria-valuetext") or ""))


def test_a_curve_is_walked_and_opened_by_keyboard(tab: Tab) -> None:
    """reward is step / 9: 8/9 at the last of nine steps; of step 5 (made.py) the last answer could not be scored."""
    page = tab.open("#run?run=attacked")
    curve = plot(page, "reward")
    curve.focus()
    told(page, "reward", "step 9, reward 0.889")
    page.keyboard.press("Home")
    told(page, "reward", "step 1, reward 0")
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    told(page, "reward", "step 5, ")
    told(page, "reward", "failed reward: 1 answers could not be scored")
    assert curve.get_attribute("aria-valuenow") == "5"
    expect(curve.locator(".at")).to_have_text("5 · failed reward · checkpoint")
    ends = "n => { const s = n.plot.scales.x; return [s.min, s.max]; }"
    page.keyboard.press("+")
    until(page, lambda: curve.evaluate(ends) == [3, 7])
    page.keyboard.press("0")
    until(page, lambda: curve.evaluate(ends) == [1, 9])
    assert not accessible(page)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#rollouts.*first=5&last=5"))
    tab.clean()


def test_a_filter_that_is_no_number(tab: Tab) -> None:
    page = tab.open("#rollouts?run=attacked&phase=train")
    field = page.get_by_label("reward from")
    field.fill("much")
    field.press("Enter")
    assert field.evaluate("n => n.validationMessage") == "a number, like 12 or 0.5" and "low" not in page.url
    field.fill("0,5")  # as many write it
    field.press("Enter")
    page.wait_for_url(re.compile("low=0.5"))
    expect(page.locator("article .reward").first).to_have_text("0.5")
    tab.clean()
    tab.open("#rollouts?run=attacked&phase=train&low=much&shortest=7")
    expect(page.get_by_role("alert")).to_contain_text("low is 'much'; it must be a number")
    expect(page.get_by_label("tokens from")).to_have_value("7")
    page.get_by_role("link", name="clear filters").click()
    expect(page.locator("article.answer")).to_have_count(50)
    assert all("400" in line for line in tab.said), tab.said


def test_the_next_prompt_and_answer_by_a_button(tab: Tab) -> None:
    """Whoever has no keyboard gets there too; at the ends there is no next one."""
    page = tab.open("#group?run=attacked&phase=train&step=2&group=1")
    expect(page.get_by_text("prompt 2 of 3")).to_be_visible()
    page.get_by_role("button", name="the next prompt").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Prompt 3 of step 2")
    expect(page.get_by_role("button", name="the next prompt")).to_be_disabled()
    page.locator("article").first.get_by_role("link", name="tokens").click()
    page.get_by_role("button", name="the next answer").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Answer 2 to prompt 3, step 2")
    page.get_by_role("button", name="the earlier answer").click()
    expect(page.get_by_role("button", name="the earlier answer")).to_be_disabled()
    page.get_by_role("link", name="step 2, prompt 3").click()
    page.wait_for_selector(".side-by-side")
    tab.clean()


def test_phases_of_a_plan_by_name(tab: Tab) -> None:
    page = tab.open(VIEWS["plan"])
    phases = page.get_by_role("region", name="Phases").get_by_role("listitem")
    expect(phases).to_have_text([re.compile("sft.*steps 1 to 12"), re.compile("rl.*steps 13 to 24")])
    phases.nth(0).get_by_role("link", name="sft").click()
    page.wait_for_url(re.compile("#rollouts.*phase=sft"))
    tab.clean()


def test_marks_have_a_key_that_leads_to_the_list(tab: Tab) -> None:
    page = tab.open("#run?run=attacked")
    key = page.locator(".marked")
    expect(key).to_contain_text("checkpoint")
    expect(key).to_contain_text("failed reward")
    key.get_by_role("button", name="list").click()
    expect(page.get_by_text("1 answers could not be scored and were left out").first).to_be_visible()
    tab.clean()


@pytest.fixture
def own(browser: Any, tmp_path: Path) -> Any:
    """A folder of runs of its own, and a tab on it."""
    served = Page(Folder(tmp_path), port=0).start()
    tab = Tab(browser, served.url)
    yield tab, tmp_path
    tab.context.close()
    served.stop()


def test_what_could_not_be_scored_is_a_warning(own: tuple[Tab, Path]) -> None:
    tab, folder = own
    with Store(made.write(folder, "shaky", steps=0) / "run.sqlite") as store:
        store.log("train", 4, {"reward": 0.5, "failed": 1.0}, made.groups(4, 2, 2), 0.5)
        store.event("train", 4, "reward error", f"r failed on 1 of 4 ({made.ATTACKS[0]})")
    page = tab.open("#runs")
    page.get_by_role("link", name="1 warning").click()
    warning = page.locator(".warnings li")
    expect(warning).to_contain_text("1 of 4 answers could not be scored")
    expect(warning).to_contain_text("<script>window.hacked=1</script>")
    warning.get_by_role("link", name="answers").click()
    expect(page.locator("article.answer")).to_have_count(1)
    expect(page.locator("article .reward")).to_have_text("not scored")
    tab.clean()


def test_a_curve_that_never_left_zero_is_a_line(own: tuple[Tab, Path]) -> None:
    tab, folder = own
    with Store(made.write(folder, "flat", steps=0) / "run.sqlite") as store:
        for step in range(3):
            more = {
                "clip_fraction": 0.0,
                "kl": 0.0 if step < 2 else 0.1,
                "rewards/chosen": 0.1,
                "rewards/rejected": -0.1,
            }
            store.log("train", step, {"reward": 0.0, **more}, made.groups(step, 1, 2), 0.5)
    page = tab.open("#run?run=flat")
    expect(page.locator(".zero")).to_have_text("0 at every step: share of tokens clipped.")
    for title in ("reward", "KL to the reference", "implicit reward of chosen and rejected"):
        plot(page, title)
    assert page.get_by_role("heading", name="share of tokens clipped").count() == 0
    tab.clean()


def test_numbers_have_one_minus(tab: Tab) -> None:
    page = tab.open(VIEWS["runs"])
    code = "async (x) => (await import('/static/dom.js')).num(x)"
    for x, shown in (
        (-0.5, "−0.5"),
        (-2.1e-8, "−2.1e−8"),
        (1e-7, "1e−7"),
        (5e6, "5e6"),
        (-1234.4, "−1,234"),
        (0, "0"),
        (0.25, "0.25"),
    ):
        assert page.evaluate(code, x) == shown, x


def test_the_field_by_family_and_by_what_was_shown(tab: Tab) -> None:
    page = tab.open("#field")
    page.get_by_role("list", name="Families").get_by_role("button", name="Preference").click()
    expect(page.get_by_role("heading", name=re.compile("^Preference"))).to_be_focused()
    page.get_by_label("evidence").select_option("not shown")
    cards = page.locator("ul.systems > li")
    expect(cards.filter(has_text="not shown")).to_have_count(cards.count())
    page.get_by_label("Search systems").fill("zzzz")
    expect(page.get_by_text("No system matches")).to_be_visible()
    tab.open(VIEWS["system"])
    expect(page.locator(".doc code").first).to_be_visible()
    assert "`" not in page.locator(".doc").first.inner_text()
    tab.clean()


def test_back_is_where_one_was(tab: Tab) -> None:
    page = tab.open("#rollouts?run=attacked&phase=train")
    page.locator("article.answer").nth(30).get_by_role("link", name="tokens").scroll_into_view_if_needed()
    page.wait_for_timeout(100)
    before = page.evaluate("scrollY")
    page.locator("article.answer").nth(30).get_by_role("link", name="tokens").click()
    page.wait_for_selector(".tok")
    assert before > 1000 and page.evaluate("scrollY") == 0
    page.go_back()
    page.wait_for_selector("main:not([aria-busy]) article.answer")
    until(page, lambda: abs(page.evaluate("scrollY") - before) < 5)
    page.go_forward()
    page.wait_for_selector(".tok")
    until(page, lambda: page.evaluate("scrollY") == 0)
    tab.clean()


def test_the_keyboard_stays_where_it_was(tab: Tab) -> None:
    """In a control that draws the view anew; on another view at its beginning, not at the top of the page."""
    page = tab.open("#rollouts?run=attacked&phase=train")
    order = page.get_by_label("order")
    order.focus()
    order.select_option("best")
    page.wait_for_url(re.compile("order=best"))
    expect(page.get_by_label("order")).to_be_focused()
    page.get_by_role("button", name="the next step").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("first=1&last=1"))
    expect(page.get_by_role("button", name="the next step")).to_be_focused()
    page.locator("article.answer").first.get_by_role("link", name="its group").focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#group"))
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("group", name="prompt").get_by_role("button", disabled=False).first).to_be_focused()
    tab.clean()


def test_a_finger_reads_before_it_opens(browser: Any, served: Page) -> None:
    context = browser.new_context(viewport={"width": 380, "height": 800}, has_touch=True)
    page = context.new_page()
    page.goto(f"{served.url}#run?run=plan")  # nothing live redraws it meanwhile
    curve = plot(page, "reward")
    curve.scroll_into_view_if_needed()
    page.wait_for_timeout(1500)
    box = curve.locator(".u-over").bounding_box()
    at = (box["x"] + box["width"] - 3, box["y"] + 40)
    page.touchscreen.tap(*at)
    expect(curve.locator(".at")).to_have_text("24")
    assert "#run?" in page.url
    page.touchscreen.tap(*at)
    page.wait_for_url(re.compile("#rollouts.*phase=rl.*first=12&last=12"))
    context.close()
