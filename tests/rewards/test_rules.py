"""Rules and answer extraction: values by hand, and every rule's own check of itself."""

from __future__ import annotations

import importlib
import threading
import time
from fractions import Fraction

import pytest

from posttrain.core.answers import boxed, final, hashed, is_number, marked, number
from posttrain.core.errors import UserError
from posttrain.core.registry import find, parts
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.rewards.rules.countdown import countdown
from posttrain.rewards.rules.exact_match import exact_match
from posttrain.rewards.rules.format import format as think_format
from posttrain.rewards.rules.knights_knaves import knights_knaves
from posttrain.rewards.rules.length import length
from posttrain.rewards.rules.math import math
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.rules.regex import regex
from posttrain.rewards.rules.repetition import repetition
from posttrain.rewards.rules.task import task
from posttrain.sandbox.available import why_not

RULES = [p for p in parts("reward") if hasattr(importlib.import_module(p.fn.__module__), "validate")]


def asked(answer: object = None, **info: object) -> Prompt:
    return Prompt.text("p", "question", answer, **info)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_rule_grades_itself(rule):
    if rule.name == "math":
        pytest.importorskip("math_verify")
    if rule.name == "code" and (why := why_not()):
        pytest.skip(f"no sandbox here: {why}")
    assert importlib.import_module(rule.fn.__module__).validate() == []


def test_the_self_check_can_fail():
    # a rule that likes everything: the gold passes, the corrupted text passes too, and that is the one problem
    assert len(problems(lambda p, t: 1.0, [(asked("4"), "4", "5")])) == 1
    # a rule that likes nothing fails on the gold
    assert len(problems(lambda p, t: 0.0, [(asked("4"), "4", "5")])) == 1


def test_all_rules_of_the_catalogue_are_there():
    names = {p.name for p in RULES}
    assert names >= {
        "exact-match",
        "numeric",
        "regex",
        "choice",
        "format",
        "length",
        "math",
        "repetition",
        "task",
        "code",
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("<think>5</think>7", "7"),
        ("7", "7"),
        ("<think>7", None),  # never closed: no answer
        ("<think>a</think>1<think>2", None),  # opened again and never closed
        ("<think>a</think>  ", None),
        ("a</think>3", "3"),  # the template opened the tag
        ("x <answer>1</answer> <answer> 2 </answer>", "2"),
        (r"\boxed{1} so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("work\n#### 72\n", "72"),
    ],
)
def test_final(text, want):
    assert final(text) == want


def test_marks():
    assert boxed(r"\boxed{a{b}c} \boxed{never closed") == "a{b}c"
    assert boxed("no box") is None
    assert hashed("#### 1\n#### 2 # x\nrest") == "2 # x"
    assert hashed("none") is None
    assert marked("plain") is None
    assert marked(r"<answer>1</answer> \boxed{2} #### 3") == "1"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("it is 1,234.5 dollars", Fraction(2469, 2)),
        ("-3", Fraction(-3)),
        ("10-3", Fraction(3)),  # a minus between numbers is not a sign
        ("$-5", Fraction(-5)),
        ("-$5", Fraction(-5)),
        ("−7", Fraction(-7)),
        ("3/4", Fraction(3, 4)),
        (r"\frac{3}{4}", Fraction(3, 4)),
        (r"-\dfrac{1}{2}", Fraction(-1, 2)),
        (r"1\frac{4}{5}", Fraction(9, 5)),
        (r"10-\frac{1}{2}", Fraction(1, 2)),
        ("2e3", Fraction(2000)),
        ("18.", Fraction(18)),
        ("50%", Fraction(50)),
        ("1, 2, 3", Fraction(3)),  # a list, not thousands
        ("1/0", None),
        ("none", None),
        ("9" * 100, None),  # longer than any answer
        ("1e999999999", Fraction(999999999)),  # never computed as a power: read as the number after the e
    ],
)
def test_number(text, want):
    assert number(text) == want


def test_number_is_fast_on_hostile_text():
    began = time.process_time()
    number("1," * 50_000 + "x")
    number("-" * 50_000)
    assert time.process_time() - began < 4.0


def test_is_number():
    assert is_number("1,000") and is_number("-3.5") and not is_number("Boeing747") and not is_number("3 apples")


@pytest.mark.derived("reward/numeric")
def test_numeric_tolerance_is_relative():
    # |1000.5 - 1000| = 0.5 <= 1e-3 * 1000 = 1;  |0.0015 - 0| = 0.0015 > 1e-3 * max(1, 0) = 0.001
    assert numeric(asked(1000), "1000.5", tolerance=1e-3) == 1.0
    assert numeric(asked(0), "0.0015", tolerance=1e-3) == 0.0
    assert numeric(asked("12 + 60 = 72\n#### 72"), "#### 72") == 1.0
    assert numeric(asked(["1", "2"]), "2") == 1.0  # a list: any of them
    assert numeric(asked(5), "no idea") == 0.0


def test_a_gold_answer_that_cannot_be_compared_is_an_error_not_a_zero():
    with pytest.raises(ValueError, match="no number"):
        numeric(asked("Paris"), "5")
    with pytest.raises(ValueError, match="no gold"):
        exact_match(asked(None), "5")


@pytest.mark.derived("reward/exact-match")
def test_exact_match_case():
    assert exact_match(asked("Paris"), " PARIS. ") == 1.0
    assert exact_match.but(case=True)(asked("Paris"), "paris") == 0.0
    assert exact_match.but(case=True)(asked("New York"), "New  York") == 1.0


@pytest.mark.derived("reward/format")
def test_format():
    assert think_format(asked(), "<think>a</think>b") == 1.0
    for bad in ("b", "<think>a</think>", "<think> </think>b", "x<think>a</think>b", "<think>a</think>b</think>c"):
        assert think_format(asked(), bad) == 0.0
    assert think_format.but(pattern=r"\d+")(asked(), " 42\n") == 1.0
    assert think_format.but(pattern=r"\d+")(asked(), "42 x") == 0.0


@pytest.mark.derived("reward/length")
def test_length_by_hand():
    # most=3, soft=4: five words are two over, 1 - 2/4 = 0.5; eight words are five over, below 0 is 0
    rule = length.but(most=3, soft=4)
    assert rule(asked(), "a b c") == 1.0
    assert rule(asked(), "a b c d e") == 0.5
    assert rule(asked(), "a b c d e f g h") == 0.0
    # target=4: two words are 2 away, 1 - 2/4 = 0.5, and six words the same
    aim = length.but(target=4, soft=4)
    assert aim(asked(), "a b") == aim(asked(), "a b c d e f") == 0.5
    assert length.but(target=3, soft=0, unit="characters")(asked(), "abcd") == 0.0
    assert length.but(target=3, soft=0, unit="characters")(asked(), "abc") == 1.0


@pytest.mark.derived("reward/repetition")
def test_repetition_by_hand():
    # "a b a b a": 3-grams aba bab aba, 2 of 3 distinct: 2/3 - 1 = -1/3
    assert repetition(asked(), "a b a b a") == pytest.approx(-1 / 3)
    assert repetition(asked(), "a b") == 0.0
    assert repetition(asked(), "") == 0.0
    # 2-grams of "x x x x": xx xx xx, 1 of 3 distinct: -2/3
    assert repetition.but(n=2)(asked(), "x x x x") == pytest.approx(-2 / 3)


def test_a_pattern_that_backtracks_for_ever_is_stopped():
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        regex(asked(), "a" * 64 + "!", pattern=r"(a|aa)+(a|aa)+(a|aa)+$", timeout=0.2)
    assert time.monotonic() - began < 60  # it would take for ever


@pytest.mark.derived("reward/countdown")
def test_countdown_traps():
    prompt = asked("(2+2)*3", numbers=[2, 2, 3], target=12)
    assert countdown(prompt, "(2+2)*3") == 1.0
    assert countdown(prompt, "3*(2+2) = 12") == 1.0
    assert countdown(prompt, "12") == 0.0
    assert countdown(prompt, "2*2*3*1") == 0.0
    assert countdown(prompt, "__import__('os')") == 0.0
    assert countdown(prompt, "2**2*3") == 0.0  # a power is not allowed, though each number is used once
    assert countdown(asked("x", numbers=[4, 3, 9], target=12), "4*3") == 0.0  # 9 is left out
    assert countdown.but(exactly=False)(asked("x", numbers=[4, 3, 9], target=12), "4*3") == 1.0


@pytest.mark.derived("reward/knights-knaves")
def test_knights_need_everybody_and_nobody_twice():
    prompt = asked("(1) Zoey is a knight\n(2) Ethan is a knave")
    assert knights_knaves(prompt, "Zoey: knight, Ethan: knave") == 1.0
    assert knights_knaves(prompt, "Zoey is a knight") == 0.0
    assert knights_knaves(prompt, "Zoey is a knight. Ethan is a knave. Ethan is a knight.") == 0.0
    assert knights_knaves(prompt, "Zoey is not a knight. Ethan is a knave.") == 0.0


def test_task_is_the_environments_grade():
    from posttrain.environments.school import school

    env = school("arithmetic", level=1)
    prompt = env.prompt(0)
    rule = task.but(environment=env)
    assert rule(prompt, str(prompt.answer)) == 1.0
    assert rule(prompt, "nonsense") == 0.0
    with pytest.raises(UserError, match=r"task\.but"):
        task(prompt, "x")


@pytest.mark.derived("reward/math")
def test_math_by_meaning():
    pytest.importorskip("math_verify")
    assert math(asked(r"\frac{1}{2}"), r"\boxed{0.5}") == 1.0
    assert math(asked(r"x^2 - 1"), r"\boxed{(x-1)(x+1)}") == 1.0
    assert math(asked(r"x^2 - 1"), r"\boxed{(x-1)(x+2)}") == 0.0
    assert math(asked("6, 13"), r"\boxed{13, 6}") == 1.0
    assert math(asked("The answer is $\\boxed{7}$."), "so 7") == 1.0  # a whole solution as gold
    assert math(asked("7"), "<think>7") == 0.0
    assert math(asked("7"), "") == 0.0


def test_math_times_out_off_the_main_thread_and_goes_on():
    """9^9^9^9^9 is a C loop that never yields: only another process can be stopped, from any thread."""
    pytest.importorskip("math_verify")
    math(asked("1"), "1")  # starts the process, whose start is not part of the time-out
    seen = {}

    def grade():
        began = time.monotonic()
        try:
            math(asked("5"), r"\boxed{9^{9^{9^{9^{9}}}}}", timeout=0.5)
        except Exception as error:
            seen["error"], seen["seconds"] = error, time.monotonic() - began
        seen["after"] = math(asked(r"\frac{1}{2}"), r"\boxed{0.5}")

    thread = threading.Thread(target=grade)
    thread.start()
    thread.join(120)
    assert isinstance(seen["error"], TimeoutError)
    assert seen["seconds"] < 30  # it would take for ever
    assert seen["after"] == 1.0


def test_math_says_what_to_install(monkeypatch):
    module = importlib.import_module("posttrain.rewards.rules.math")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install"):
        module.ready()


def test_names_and_parameters_are_checked():
    with pytest.raises(UserError, match="did you mean 'numeric'"):
        find("numerc", "reward")
    with pytest.raises(UserError, match="tolerance"):
        find("numeric(tolerence=1)", "reward")


def test_units_and_short_fractions_are_no_other_number():
    for text in ("3 cm^2", "\\boxed{3\\text{ cm}^{2}}", "3\\,\\mathrm{m}^3", "3 s^-1"):
        assert number(text) == 3, text
    assert number("-\\frac12") == Fraction(-1, 2) and number("\\dfrac 3 4") == Fraction(3, 4)
    assert number("2^{10}") == 10 and number("x^2 = 9") == 9
    assert number("\\frac12 + \\frac{3}{123}") == Fraction(3, 123)


def test_accents_are_the_same_however_they_were_typed():
    assert exact_match(asked("caf\u00e9"), "cafe\u0301") == 1.0 and exact_match(asked("caf\u00e9"), "cafe") == 0.0
