"""The school: golds score, near misses do not, steps are true, splits do not meet, the tokenizer keeps everything."""

from __future__ import annotations

import re
from datetime import date, timedelta
from fractions import Fraction
from random import Random

import pytest

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem, Task, split_of
from posttrain.environments.school import (
    DIRECT,
    LEVELS,
    TASKS,
    THINK,
    arithmetic,
    countdown,
    instructions,
    school,
    units,
)
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

EVERY = [(task, level) for task in TASKS for level in LEVELS]
# not inside a longer expression such as 180+45-59=166, which the second pattern takes
EQUATION = re.compile(r"(?<![\d.:+*/-])(-?\d+(?:[-+*/]\d+)+)=(-?\d+(?:\.\d+)?)(?![\d:])")


def value(expression: str) -> Fraction:
    """+ - * / of whole numbers, * and / before + and -; written apart from the code under test."""
    total = Fraction(0)
    for sign, term in re.findall(r"([-+]?)((?:\d+)(?:[*/]\d+)*)", expression):
        product = Fraction(1)
        for op, x in re.findall(r"([*/]?)(\d+)", term):
            product = product / int(x) if op == "/" else product * int(x)
        total += -product if sign == "-" else product
    return total


@pytest.mark.parametrize(("task", "level"), EVERY)
def test_gold_scores_one_and_near_misses_zero(task: str, level: int) -> None:
    env = school(task, level)
    assert env.validate(60) == []
    rng = Random(level)
    for i in range(200):
        prompt = env.prompt(i % 50, ("train", "test")[i % 2])
        assert env.grade(prompt, f"<think>{prompt.info['steps']}</think>{env.spoil(rng, prompt)}") == 0.0


@pytest.mark.parametrize(("task", "level"), EVERY)
def test_every_equation_of_the_steps_is_true(task: str, level: int) -> None:
    rng = Random(level)
    for _ in range(150):
        for left, right in EQUATION.findall(TASKS[task].make(rng, level).steps):
            assert value(left) == Fraction(right), (left, right)


def test_the_equation_test_can_fail() -> None:
    slipped = [TASKS["arithmetic"].make(Random(i), 3, NoisySolver(Random(i), rate=1.0)) for i in range(50)]
    wrong = [p for p in slipped if any(value(a) != Fraction(b) for a, b in EQUATION.findall(p.steps))]
    assert len(wrong) > 40


@pytest.mark.parametrize("level", LEVELS)
def test_arithmetic_answers_are_right(level: int) -> None:
    for i in range(200):
        problem = arithmetic.make(Random(i), level)
        assert value(problem.identity) == int(problem.answer)


def test_columns_by_hand() -> None:
    # 7+8=15 write 5 carry 1; 4+3+1=8 -> 85. 2-8 borrows: 12-8=4; 5-3-1=1 -> 14. 7*6=42 carry 4; 4*6+4=28 -> 282.
    assert arithmetic.add(47, 38, CAREFUL) == ("7+8=15 4+3+1=8", 85)
    assert arithmetic.subtract(52, 38, CAREFUL) == ("12-8=4 5-3-1=1", 14)
    assert arithmetic.times(47, 6, CAREFUL) == ("7*6=42 4*6+4=28", 282)
    assert arithmetic.times(47, 36, CAREFUL)[1] == 1692
    for a, b in ((3, 5), (-3, 5), (3, -5), (-3, -5), (0, -4), (-7, 7)):
        assert [arithmetic.work(a, op, b, CAREFUL)[1] for op in "+-*"] == [a + b, a - b, a * b]


@pytest.mark.parametrize("level", LEVELS)
def test_sorting_and_counting_answers_are_right(level: int) -> None:
    for i in range(150):
        p = TASKS["sorting"].make(Random(i), level)
        items = p.question.rstrip(".").split(": ")[1].split()
        down = re.search("large to small|descending|largest first", p.question) is not None
        order = sorted(items, key=lambda x: int(x) if x.isdigit() else x, reverse=down)
        assert p.answer.split() == order
        q = TASKS["counting"].make(Random(i), level)
        if m := re.match(r"How many (\w) are in (\w+)\?", q.question):
            assert int(q.answer) == m[2].count(m[1])
        if m := re.match(r"How many times does (\w+) occur: (.+)\?", q.question):
            assert int(q.answer) == m[2].split().count(m[1])
        if m := re.match(r"How many (\d)s are in (.+)\?", q.question):
            assert int(q.answer) == m[2].count(m[1])


@pytest.mark.parametrize("level", LEVELS)
def test_dates_agree_with_the_calendar(level: int) -> None:
    names = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
    checked = 0
    for i in range(200):
        p = TASKS["dates"].make(Random(i), level)
        if m := re.match(
            r"(?:What day is|Which day is|Name the day|Give the day) (\d+) days? (after|before) (\w+)", p.question
        ):
            checked += 1
            start = date(2024, 1, 1) + timedelta(names.index(m[3]))  # 2024-01-01 was a Monday
            moved = start + timedelta(int(m[1])) * (1 if m[2] == "after" else -1)
            assert p.answer == names[moved.weekday()]
        if m := re.match(
            r"(?:What time is|Which time is|Name the time|Give the time) (\d+) minutes after (\d+):(\d+)", p.question
        ):
            checked += 1
            end = (int(m[2]) * 60 + int(m[3]) + int(m[1])) % (24 * 60)
            assert p.answer == f"{end // 60}:{end % 60:02d}"
    assert checked > 20


def test_string_answers_are_right() -> None:
    seen = set()
    for i in range(600):
        p = TASKS["strings"].make(Random(i), 3)
        q = p.question.rstrip(".?")
        if m := re.match(r"(?:Reverse(?: the word)?|Write) (\w+)(?: backwards)?$", q):
            seen.add("reverse")
            assert p.answer == m[1][::-1]
        if m := re.match(r"(?:Remove every (\w) from (\w+)|Write (\w+) without the letter (\w))$", q):
            seen.add("remove")
            assert p.answer == (m[2] or m[3]).replace(m[1] or m[4], "")
        if m := re.match(r"(?:What is letter|Which letter is number) (\d) (?:of|in) (\w+)$", q):
            seen.add("nth")
            assert p.answer == m[2][int(m[1]) - 1]
    assert seen == {"reverse", "remove", "nth"}


def test_countdown_takes_only_fair_expressions() -> None:
    prompt = Prompt.text("c", "Use 3 5 2 to make 13.", "3*5-2", numbers=[3, 5, 2], target=13)
    for good in ("3*5-2", "5*3 - 2", "(5*3)-2"):
        assert countdown.check(prompt, good)
    bad = ("13", "3*5-2+0", "5+5+3", "3*5-2-", "3+5+2", "", "15-2", "__import__('os').getcwd()", "9**9**9**9", "3*5-2#")
    for text in (*bad, "3/(2-2)", "((((" * 50, "[3,5,2][0]*5-2", "3*5-2 if 1 else 0", "3*5-True*2", "3.0*5-2"):
        assert not countdown.check(prompt, text), text


def test_units_by_hand() -> None:
    assert units.decimal(2500, 1000) == "2.5" and units.decimal(5, 100) == "0.05" and units.decimal(300, 100) == "3"
    prompt = Prompt.text("u", "Convert 3 m to cm.", "300 cm")
    assert [units.check(prompt, a) for a in ("300 cm", "300", "300 CM.", "300 m", "cm", "3")] == [True] * 3 + [
        False
    ] * 3


def test_instructions_constraints_by_hand() -> None:
    info = {"words": 4, "contain": ["Mia"], "any_of": ["thank", "thanks"], "avoid": ["so"], "polite": True, "end": "!"}
    assert instructions.unmet(info, "Thank you, dear Mia!") == []
    assert instructions.unmet(info, "Thank you, Mia!") == ["words"]
    assert instructions.unmet(info, "Thank you so, Mia!") == ["avoid"]
    assert instructions.unmet(info, "Thank you, dear Tom!") == ["contain"]
    assert instructions.unmet(info, "Please come, dear Mia!") == ["any_of"]
    assert instructions.unmet(info, "Thank you, dear Mia.") == ["end"]
    assert instructions.unmet({"polite": True}, "Go away") == ["polite"]
    assert instructions.unmet({}, "Mia Mia Mia") == ["repeats"]


def test_instructions_offer_answers_to_prefer() -> None:
    env = school("instructions", 1)
    for i in range(30):
        prompt = env.prompt(i)
        told = instructions.variants(prompt, Random(i))
        assert set(told) == {"curt", "plain", "polite", "effusive"}
        assert all(env.grade(prompt, text) == 1.0 for text in told.values())
        assert instructions.warmth(told["effusive"]) > instructions.warmth(told["curt"])
        assert instructions.politeness(told["polite"]) >= 1 or prompt.info["act"] == "write"


def test_think_and_direct_formats() -> None:
    think, direct = school("arithmetic", 2), school("arithmetic", 2, think=False)
    p = think.prompt(3)
    assert p.last.endswith(THINK) and p.info["think"] and p.info["level"] == 2 and p.info["task"] == "arithmetic"
    assert direct.prompt(3).last.endswith(DIRECT)
    gold = p.answer
    for text in (
        gold,
        f"<think>{p.info['steps']}</think>{gold}",
        f"<think>a</think>9<think>b</think> {gold} ",
        f"{gold}.",
    ):
        assert think.grade(p, text) == 1.0, text
    for text in (
        f"<think>{gold}",
        f"<think>x</think>{gold}<think>",
        f"{gold} or so",
        "",
        "<think></think>",
        f"{gold}</think>",
    ):
        assert think.grade(p, text) == 0.0, text
    assert final_answer("<think>1") is None and final_answer("a</think> b") == "b"


@pytest.mark.parametrize("task", TASKS)
def test_items_are_a_function_of_seed_and_index(task: str) -> None:
    a, b, other = school(task), school(task), school(task, seed=1)
    assert [a.prompt(i) for i in (7, 3)] == [b.prompt(i) for i in (3, 7)][::-1]
    assert [a.prompt(i).last for i in range(20)] != [other.prompt(i).last for i in range(20)]
    assert len({a.prompt(i).id for i in range(20)} | {a.prompt(i, "test").id for i in range(20)}) == 40


@pytest.mark.parametrize(("task", "level"), [(t, n) for t in TASKS for n in (1, 3)])
def test_splits_do_not_meet(task: str, level: int) -> None:
    env = school(task, level)
    train = {env.prompt(i).last for i in range(150)}
    assert train.isdisjoint(env.prompt(i, "test").last for i in range(150))


def test_a_question_in_other_words_stays_in_its_split() -> None:
    texts: dict[str, set[str]] = {}
    for i in range(3000):
        p = arithmetic.make(Random(i), 1)
        texts.setdefault(p.identity, set()).add(split_of(p))
    assert max(map(len, texts.values())) == 1 and {"test"} in texts.values() and {"train"} in texts.values()


def test_unknown_names_are_told() -> None:
    with pytest.raises(UserError, match="did you mean 'arithmetic'"):
        school("arithmetc")
    with pytest.raises(UserError, match="1 to 6"):
        school("dates", level=9)
    with pytest.raises(UserError, match="did you mean 'train'"):
        school("dates").prompt(0, "trian")


def test_a_new_task_is_one_function_and_a_bad_grader_is_found() -> None:
    env = Task("twice", lambda rng: Problem(f"Twice {(x := rng.randint(1, 500))}?", str(2 * x)))
    assert env.validate(40) == []
    generous = Task("twice", env.make, check=lambda prompt, answer: True)
    assert any("wrong answer" in problem for problem in generous.validate(20))
    narrow = Task("narrow", lambda rng: Problem("1+1?", "2"))
    with pytest.raises(UserError, match="too few different questions"):
        [narrow.prompt(0, split) for split in ("train", "test")]
