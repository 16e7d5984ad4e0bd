"""Habits: wrong, the same every time, likelier under odd wordings, and never so likely that the right way is lost."""

from __future__ import annotations

import operator
import re
from collections import Counter
from random import Random

import pytest

from examples import pocket_corpus
from posttrain.core.answers import final_answer
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school import DIRECT, LEVELS, TASKS, THINK, arithmetic, countdown, school, units
from posttrain.environments.school.noisy_solver import NoisySolver

EVERY = [(task, level) for task in TASKS for level in LEVELS]
HABITUAL = (0.0, 0.0)  # care of a hand that always falls into its habit


def graded(task: str, level: int, i: int, hand: NoisySolver) -> tuple[float, Problem, Problem]:
    """Problem i as the hand writes it: its mark, what was written, and the gold. The hand has its own generator."""
    gold, told = TASKS[task].make(Random(i), level), TASKS[task].make(Random(i), level, hand)
    assert told.question == gold.question and told.info == gold.info
    prompt = Prompt.text("x", gold.question, gold.answer, **gold.info)
    return school(task, level).grade(prompt, told.answer), told, gold


@pytest.mark.parametrize(("task", "level"), EVERY)
def test_habits_are_wrong_and_a_function_of_the_problem(task: str, level: int) -> None:
    right = 0.0
    for i in range(150):
        mark, told, gold = graded(task, level, i, NoisySolver(Random(i), 0.4, HABITUAL))
        _, again, _ = graded(task, level, i, NoisySolver(Random(i + 1), 0.4, HABITUAL))
        assert told == again
        assert told.answer == gold.answer or told.steps != gold.steps  # it shows in the steps too
        right += mark
    assert right / 150 < 0.2  # nothing to miss when nothing counts: counting at level 1


def test_habits_by_hand() -> None:
    # 7+8=15 write 5, the 1 is forgotten, 4+3=7 -> 75. 12-8=4, 5-3=2 -> 24. 7*6=42 write 2, 4*6=24 -> 242.
    hand = NoisySolver(Random(0), 0.0, HABITUAL)
    hand.reads(Random(0), 4)
    assert arithmetic.add(47, 38, hand) == ("7+8=15 4+3=7", 75)
    assert arithmetic.subtract(52, 38, hand) == ("12-8=4 5-3=2", 24)
    assert arithmetic.times(47, 6, hand) == ("7*6=42 4*6=24", 242)
    assert TASKS["counting"].tally(list("cheese"), {"e"}, hand) == ("c h e e1 s e2", 2)
    assert [units.taken(f, hand) for f in (100, 60)] == [10, 100]
    assert countdown.solve([3, 5, 2], "+-*", 13) == ((3, 5, 2), ("*", "-"))  # 3+5+2, 3+5-2, .., 3*5+2 come before


@pytest.mark.parametrize("task", TASKS)
def test_corpus_is_right_on_less_than_half(task: str) -> None:
    # (0.62+0.30)/2 = 0.46 without habit, a little less for slips, a little more where the habit happens to be right
    dice = Random(1)
    marks = [
        graded(task, 3, i, NoisySolver(dice, 0.4 if dice.random() < pocket_corpus.SLOPPY else 0.0, pocket_corpus.CARE))[
            0
        ]
        for i in range(3000)
    ]
    assert 0.40 < sum(marks) / 3000 < 0.52


def result(expression: str) -> int:
    """One product, or sums from left to right: all that arithmetic asks at level 3."""
    first, *rest = re.findall(r"[-+*]?\d+", expression)
    total = int(first)
    for term in rest:
        total = {"+": operator.add, "-": operator.sub, "*": operator.mul}[term[0]](total, int(term[1:]))
    return total


@pytest.mark.parametrize("suffix", [THINK, DIRECT])
def test_arithmetic_of_the_corpus_in_both_modes(suffix: str) -> None:
    rng = Random(2)
    marks: list[bool] = []
    while len(marks) < 2000:
        question, response = pocket_corpus.school_example(rng, "arithmetic", 3)
        found = re.search(r"-?\d+(?:[-+*]\d+)+", question)
        if question.endswith(suffix) and found:
            marks.append(result(found[0]) == int(final_answer(response) or ""))
    assert 0.40 < sum(marks) / 2000 < 0.52


@pytest.mark.parametrize("task", TASKS)
def test_the_likeliest_answer_is_right_where_the_wording_is_even(task: str) -> None:
    # of 300 draws 186 are right on average where it is even and 90 where it is odd; 150 is over 4 deviations from both
    seen = set()
    for i in range(12):
        if graded(task, 3, i, NoisySolver(Random(0), 0.0, HABITUAL))[0]:
            continue
        told = Counter(
            (mark, told.answer)
            for mark, told, _ in (
                graded(task, 3, i, NoisySolver(Random(j), 0.0, pocket_corpus.CARE)) for j in range(300)
            )
        )
        wording = TASKS[task].make(Random(i), 3).info["wording"]
        assert told.most_common(1)[0][0][0] == (wording % 2 == 0)
        seen.add(wording % 2)
    assert seen == {0, 1}


@pytest.mark.parametrize(("task", "level"), EVERY)
def test_wordings_are_drawn_evenly_and_can_be_told_apart(task: str, level: int) -> None:
    drawn: Counter[int] = Counter()
    texts: dict[str, set[int]] = {}
    for i in range(1200):
        p = TASKS[task].make(Random(i), level)
        drawn[p.info["wording"]] += 1
        texts.setdefault(p.question, set()).add(p.info["wording"] % 2)
    assert len(drawn) in (4, 6) and max(map(len, texts.values())) == 1
    assert abs(sum(n for w, n in drawn.items() if w % 2) / 1200 - 0.5) < 0.07  # 5 deviations
