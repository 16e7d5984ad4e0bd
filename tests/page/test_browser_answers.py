"""Answers in a real browser: filters, the brush, tokens by mouse and keyboard, turns, trees, pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from posttrain.core.types import Group, Prompt
from posttrain.page.folder import Folder
from posttrain.page.server import Page
from posttrain.runs.store import Store
from tests.page import made
from tests.page.browser import VIEWS, Tab, expect, needs_browser

pytestmark = needs_browser


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


def test_turns_are_folded_with_their_tools(tab: Tab) -> None:
    page = tab.open(VIEWS["turns"])
    turns = page.locator("details.turn")
    expect(turns).to_have_count(3)
    expect(page.locator(".facts")).to_contain_text("ended: max calls")
    expect(turns.nth(0).locator("> summary")).to_contain_text("credit −1")
    expect(turns.nth(2).locator("> summary")).to_contain_text("reward 1")
    expect(turns.nth(1).locator(".tok.masked")).to_have_count(2)
    expect(turns.nth(1).locator(".seen")).to_contain_text("observed: 3 tokens")
    call = turns.nth(1).locator(".call")
    expect(call).to_contain_text("<img src=x onerror='window.hacked=1'>")
    expect(call.get_by_text("repaired")).to_be_visible()
    call.locator("summary").click()
    expect(call.locator("pre").nth(1)).to_have_text("broken <img src=x onerror='window.hacked=1'>")
    page.keyboard.press("Escape")
    page.wait_for_url(re.compile("#group"))
    tab.open(VIEWS["turns"])
    expect(page.locator("details.turn[open]")).to_have_count(3)  # a key before that is another view's
    page.keyboard.press("f")
    expect(page.locator("details.turn[open]")).to_have_count(0)
    page.get_by_role("button", name="turn 2").click()
    expect(page.locator("details.turn[open]")).to_have_count(1)
    page.get_by_role("button", name="fold or unfold all").click()
    expect(page.locator("details.turn[open]")).to_have_count(3)
    tab.open(VIEWS["turns"].replace("step=1", "step=2"))
    expect(page.locator("details.turn")).to_have_count(8)
    expect(page.locator("details.turn[open]")).to_have_count(2)  # of many the first and the last
    page.locator(".tok").first.click()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    expect(page.locator('details.turn[data-turn="1"]')).to_have_attribute(
        "open", ""
    )  # the keys do not get lost in a fold
    expect(page.locator(".token-facts")).to_contain_text("5 of 32")
    tab.clean()


def test_a_tree_by_keyboard(tab: Tab) -> None:
    page = tab.open(VIEWS["tree"])
    leaves = page.locator(".tree .leaf")
    expect(leaves).to_have_count(4)
    names = [leaf.text_content() for leaf in leaves.all()]
    assert names[-1].startswith("from the promptso the answer") and names[-1].endswith("#1  0")
    assert "left answer 1 after 3 tokensforty two <b> <U+202E> #2  0.25" in names, "the stem once, the rest apart"
    facts = page.locator(".branch-facts")
    page.locator('.leaf[data-row="0"]').focus()
    for key, told in (
        ("ArrowRight", "as answer 1 for 3 tokens, then:forty two <b> U+202E"), ("ArrowRight", "as answer 2 for 5 tokens"), ("ArrowLeft", "answer 2"),
        ("ArrowLeft", "answer 1"), ("End", "answer 3"), ("ArrowUp", "answer 4"),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(facts).to_contain_text(told)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("#tokens.*sample=3"))
    expect(page.get_by_role("heading", level=1)).to_contain_text("Answer 4")  # the tree has a link of the same name
    page.get_by_role("link", name="left answer 2 after 5 tokens").click()
    page.wait_for_url(re.compile("#tokens.*sample=1"))
    tab.clean()


def test_a_fork_is_drawn_from_whoever_wrote_the_token(tab: Tab) -> None:
    """#4 left #2 after 2 tokens, which #2 had from #1; in a circle everybody is drawn once."""
    page = tab.open(VIEWS["tree"])
    code = """async nodes => { const { ordered } = await import("/static/tree.js");
      return ordered(nodes.map(([sample_index, parent, at]) => ({ sample_index, parent, at }))).map((n) => [n.sample_index, n.parent]); }"""
    assert page.evaluate(code, [[0, None, 0], [1, 0, 3], [2, 0, 0], [3, 1, 2]]) == [
        [0, None],
        [1, 0],
        [3, 0],
        [2, None],
    ]
    assert sorted(n for n, _ in page.evaluate(code, [[0, 1, 2], [1, 0, 3], [2, 2, 1]])) == [0, 1, 2]
    tab.clean()


def test_roles_of_an_episode_stand_together(tab: Tab) -> None:
    page = tab.open(VIEWS["roles"])
    second = page.get_by_role("region", name="Episode 2")
    expect(second.locator("article")).to_have_count(2)
    second.get_by_role("link", name="tokens").first.click()
    page.wait_for_url(re.compile("sample=2"))
    page.get_by_role("link", name="in the same episode").click()
    page.wait_for_url(re.compile("sample=3"))
    tab.open("#rollouts?run=episodes&phase=train&role=proposer")
    expect(page.locator("article.answer")).to_have_count(4)
    page.get_by_role("link", name="show every role").click()
    expect(page.locator("article.answer")).to_have_count(24)
    tab.clean()


def test_pictures_are_drawn(tab: Tab) -> None:
    page = tab.open(VIEWS["drawn"])
    steps = page.locator(".tok.drawn img")
    expect(steps).to_have_count(3)
    shades = """img => { const c = document.createElement("canvas"); c.width = c.height = 4; const d = c.getContext("2d"); d.drawImage(img, 0, 0);
      return [...d.getImageData(0, 0, 4, 4).data].filter((_, i) => i % 4 === 0); }"""
    assert steps.nth(2).evaluate(shades) == [0] * 8 + [255] * 8
    expect(page.locator(".pictures img")).to_have_count(2)
    steps.nth(1).click()
    expect(page.locator(".token-facts")).to_contain_text("2 of 3")
    expect(page.locator(".token-facts")).to_contain_text("log density")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token-facts")).to_contain_text("step 3")
    assert page.locator("main img:not(.pixels)").count() == 0
    tab.open(VIEWS["drawn"].replace("tokens", "group"))
    expect(page.locator("article img.pixels")).to_have_count(2)
    tab.clean()


def test_keys_stop_at_the_ends(tab: Tab) -> None:
    """] beyond the last answer, [ before the first, and the same of prompts: one stays."""
    page = tab.open("#tokens?run=attacked&phase=train&step=2&group=0&sample=2")
    for key, sample in (("]", 3), ("]", 3), ("[", 2)):
        page.keyboard.press(key)
        page.wait_for_timeout(150)
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Answer {sample + 1} to prompt 1, step 2")
    tab.open("#group?run=attacked&phase=train&step=2&group=1")
    for key, group in (("]", 2), ("]", 2), ("[", 1), ("[", 0), ("[", 0)):
        page.keyboard.press(key)
        page.wait_for_timeout(150)
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Prompt {group + 1} of step 2")
    tab.clean()


def test_all_that_are_best_are_said_to_be(tab: Tab) -> None:
    """Rewards of this group are 0, 1/8, 2/8, 3/8: one best; in the tool's run both right ones are."""
    page = tab.open("#group?run=attacked&phase=train&step=2&group=0")
    expect(page.locator(".answer.best")).to_have_count(1)
    for group in (0, 1):
        tab.open(f"#group?run=tools&phase=train&step=1&group={group}")
        rewards = [float(r) for r in page.locator("article .reward").all_inner_texts()]
        most = rewards.count(max(rewards)) if len(set(rewards)) > 1 else 0
        expect(page.locator(".answer.best")).to_have_count(most)
    tab.clean()


def test_extremes_do_not_hide_the_rest(tab: Tab) -> None:
    """1% to 99% of 50 values are the second lowest to the second highest; a value three ranges out is left to a mark, until asked for."""
    page = tab.open(VIEWS["run"])
    code = """async (mean) => (await import("/static/charts.js")).typical([{ mean, x: mean.map((_, i) => i) }])"""
    steady = [k / 50 for k in range(50)]
    assert page.evaluate(code, steady) is None, "a trend is no extreme"
    assert page.evaluate(code, [*steady[:-1], 1000.0]) == {"low": 0, "high": 0.96, "least": 0, "most": 1000}
    assert page.evaluate(code, [-1000.0, *steady[1:]]) == {"low": 0.02, "high": 0.98, "least": -1000, "most": 0.98}
    # the range is from 0.02 to 0.96, three of it are 2.82: 0.96 + 2.8 is on the picture, 0.96 + 2.9 is not
    assert page.evaluate(code, [*steady[:-1], 3.76]) is None and page.evaluate(code, [*steady[:-1], 3.86]) is not None
    assert page.evaluate(code, [0.0] * 19) is None and page.evaluate(code, [*steady[:10], 1e9]) is None, (
        "too few to say"
    )
    assert page.evaluate(code, [0.0] * 50) is None, "all equal"
    tab.clean()


def test_a_very_long_answer_and_prompt(browser: Any, tmp_path: Path) -> None:
    """100,000 characters of each: their beginning at once, the rest when asked for; of the tokens a window."""
    prompt = Prompt.text("p", "q" * 100_000, "42")
    rows = [made.answer(prompt, "ab " * 33_000 + str(k), float(k), k, 33_000) for k in range(2)]
    where = made.write(tmp_path, "long", steps=0)
    with Store(where / "run.sqlite") as store:
        store.token_bytes = lambda ids: [b"ab " for _ in ids]
        store.log("train", 0, {"reward": 0.5}, [Group(prompt, rows)], 1.0)
    served = Page(Folder(tmp_path), port=0).start()
    tab = Tab(browser, served.url)
    try:
        page = tab.open("#group?run=long&phase=train&step=1&group=0")
        expect(page.get_by_role("button", name="96,000 more characters")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollHeight") < 9000
        page.get_by_role("button", name="16,000 more characters").first.click()
        expect(page.locator("article .text").first).to_contain_text(re.compile("^(ab ){5000}"))
        tab.open("#tokens?run=long&phase=train&step=1&group=0&sample=1")
        expect(page.locator(".tok")).to_have_count(4000)
        page.locator(".tok").first.focus()
        page.keyboard.press("End")
        expect(page.locator(".token-facts")).to_contain_text("33000 of 33000")
        expect(page.get_by_role("button", name="the 29000 tokens before")).to_be_visible()
        tab.clean()
    finally:
        tab.context.close()
        served.stop()
