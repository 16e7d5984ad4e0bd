"""Held-out scores: the task's grade, or the run's reward where the task has no gold answers."""

from __future__ import annotations

import math
import time

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.data import data
from posttrain.environments.questions import Layout
from posttrain.evals.accuracy import accuracy, answers, asked_for, graded, mean_reward, score_of
from posttrain.rewards.scorers.spec import task_scorer
from posttrain.runs.in_memory import FunctionScorer, numbered, row


def rewarded(*rewards: float) -> list[Rollout]:
    made = [TabularPolicy(1, 2, 2).written(row(0), "ab") for _ in rewards]
    for r, x in zip(made, rewards, strict=True):
        r.reward = x
    return made


def test_problems_without_a_scored_answer_are_left_out() -> None:
    """Problem means 1 (of 1 and a failure) and 3: mean 2, variance 2, error sqrt(2 / 2); the third has none."""
    found = score_of([rewarded(1.0, math.nan), rewarded(2.0, 4.0), rewarded(math.nan, math.nan)], "reward")
    assert (found.accuracy, found.error, found.problems, found.tokens, found.name) == (2.0, 1.0, 3, 2.0, "reward")


def test_nothing_scored_is_not_zero() -> None:
    assert math.isnan(score_of([rewarded(math.nan)], "reward").accuracy)


def test_a_scorer_in_place_of_a_grader() -> None:
    """The reward is the prompt's row, 0 1 2: mean 1, variance 1, error sqrt(1 / 3)."""
    by_row = FunctionScorer(lambda rollouts: torch.tensor([float(r.context[0]) for r in rollouts]))
    found = mean_reward(TabularPolicy(3, 2, 2), numbered(3), 10, Sampling(), by_row)
    assert found.accuracy == 1.0 and found.error == pytest.approx(math.sqrt(1 / 3))
    assert found.problems == 3 and found.name == "reward"


def test_accuracy_is_the_tasks_own_grade() -> None:
    env = numbered(4)
    env.grade = lambda prompt, text: float(prompt.info["row"] < 1)  # type: ignore[attr-defined]
    found = accuracy(TabularPolicy(4, 2, 2), env, 4, Sampling(), n=2)
    assert found.accuracy == 0.25 and found.name == "accuracy" and len(found.rollouts) == 8


def test_a_grade_that_raises_is_left_out_and_counted() -> None:
    """Rows 0 1 2 3: the grader raises on 1 and 3, and says 1 and 0 of the others: mean 1/2 of two, 2 answers failed."""

    def grade(prompt: Prompt, text: str) -> float:
        if prompt.info["row"] % 2:
            raise RuntimeError("no gold answer")
        return float(prompt.info["row"] == 0)

    env = numbered(4)
    env.grade = grade  # type: ignore[attr-defined]
    found = accuracy(TabularPolicy(4, 2, 2), env, 4, Sampling())
    assert (found.accuracy, found.failed, found.problems) == (0.5, 2, 4)
    assert [r.failed for r in found.rollouts] == [False, True, False, True]
    assert found.told.startswith("2 of 4 could not be graded: task failed on 2 of 4 (RuntimeError: no gold answer")


def test_a_grade_that_never_comes_is_left_out_too() -> None:
    def grade(prompt: Prompt, text: str) -> float:
        time.sleep(30.0 if prompt.info["row"] else 0.0)
        return 1.0

    env = numbered(2)
    env.grade = grade  # type: ignore[attr-defined]
    made = answers(TabularPolicy(2, 2, 2), env, [env.prompt(0), env.prompt(1)], Sampling())
    found = graded(made, task_scorer(env, timeout=0.2), "accuracy")
    assert (found.accuracy, found.failed) == (1.0, 1) and "no result within 0.2 s" in found.why


def test_a_file_grades_where_it_has_gold_answers_or_a_reward_of_its_own() -> None:
    bare, gold = (
        [{"prompt": f"Say {i}"} for i in range(9)],
        [{"prompt": f"{i}+1?", "answer": str(i + 1)} for i in range(9)],
    )
    assert data(gold).graded and not data(bare).graded
    assert data(bare, layout=Layout(reward="format")).graded


def test_all_rows_where_one_split_has_none() -> None:
    rows = [{"question": f"q{i}", "answer": "1"} for i in range(3)]
    assert len(asked_for(data({"test": rows}), 10, "all")) == 3
    assert len(asked_for(data(rows[:1]), 10, "all")) == 1
    both = data({"train": rows[:2], "test": rows[2:]})
    assert asked_for(both, 1, "all")[0].last == "q2" and len(asked_for(both, 10, "all")) == 3
    assert len(asked_for(both, 2, "all")) == 2 and len(asked_for(both, 10, "test")) == 1
    with pytest.raises(UserError, match="no test questions"):
        asked_for(data(rows[:1]), 10, "test")
