"""Rewards in processes of their own: the same numbers, and an answer that ends or holds its process is masked and counted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.distributed.choose import Elsewhere
from posttrain.environments.task import task
from posttrain.methods.grpo import grpo
from posttrain.rewards.scorers.spec import build_scorer

REWARD = """
import os

def many(prompts, texts):
    return [float(os.getpid()) for _ in texts]
"""
TASK = """
import os
from posttrain import Environment, Prompt

class Deadly(Environment):
    name = "deadly"

    def prompt(self, index, split="train"):
        return Prompt.text(f"{split}-{index}", "a", "b")

    def grade(self, prompt, text):
        if text == "die":
            os._exit(5)
        if text == "raise":
            raise ValueError("no")
        return len(text) / 10
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rewards")
    (folder / "mine.py").write_text(REWARD)
    (folder / "deadly.py").write_text(TASK)
    (folder / "rows.jsonl").write_text('{"question": "a", "answer": "b"}\n' * 4)
    return folder


def groups(*texts: str) -> list[Group]:
    prompt = Prompt.text("p", "a", "b")
    made = [Rollout(prompt, [_turn(t)], index=i) for i, t in enumerate(texts)]
    return [Group(prompt, made)]


def _turn(text: str) -> Turn:
    return Turn.of(Observation(torch.arange(2)), torch.arange(3), torch.zeros(3), text)


@pytest.fixture(scope="module")
def opened(files: Path) -> Iterator[Any]:
    """A scorer of two rewards, one of which takes all answers at once, with one reward worker."""
    config = Config(
        task=f"{files}/deadly.py:Deadly", reward=f"task + 0*{files}/mine.py:many + 0*length", reward_workers=1,
        reward_timeout=5.0,
    )  # fmt: skip
    scorer = build_scorer(config.reward, task(config.task), 5.0)
    workers = Elsewhere(config, files)
    workers.rewards(scorer, grpo.rollout)
    yield scorer
    workers.close()


def test_rewards_of_single_answers_come_from_workers_in_their_order(opened: Any) -> None:
    texts = ["x" * k for k in range(1, 9)]
    made = groups(*texts)
    asked: list[str] = []
    plain = opened._elsewhere
    opened._elsewhere = lambda name, answers: asked.append(name) or plain(name, answers)
    report = opened.score(made)
    opened._elsewhere = plain
    assert [r.reward for r in made[0].rollouts] == [k / 10 for k in range(1, 9)] and report.masked == 0
    assert asked == ["task", "length"], "a reward of all answers at once stays where it was"
    assert len({r.rewards["many"] for r in made[0].rollouts}) == 1


def test_an_answer_that_ends_its_process_is_masked_alone(opened: Any) -> None:
    """It is given out with two others, which are asked again alone."""
    made = groups("aa", "die", "raise", "bbb", *(["cccc"] * 8))
    report = opened.score(made)
    first, died, raised, *rest = (r.reward for r in made[0].rollouts)
    assert (first, *rest) == (0.2, 0.3, *([0.4] * 8)) and math.isnan(died) and math.isnan(raised)
    assert report.masked == 2 and report.rewards[0].failed == 2


def test_a_reward_of_all_answers_has_nothing_to_give_out(files: Path) -> None:
    config = Config(task=str(files / "rows.jsonl"), reward=f"{files}/mine.py:many", reward_workers=2)
    scorer = build_scorer(config.reward, task(config.task), 5.0)
    with pytest.raises(UserError, match="asked about all answers of a step at once"):
        Elsewhere(config, files).rewards(scorer, grpo.rollout)
