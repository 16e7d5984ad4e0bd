"""Open-RS: which questions it mixes, which rewards it adds up, and the whole plan on the embedded model."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Cycle
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task
from posttrain.systems.efficient_reasoning.open_rs import Mixed, open_rs


def test_every_second_question_is_easy_and_the_test_is_not() -> None:
    hard, easy = task("arithmetic", level=3), task("arithmetic", level=1)
    env = Mixed(hard, easy)
    asked = [env.prompt(i).id for i in range(4)]
    assert asked == [hard.prompt(0).id, easy.prompt(0).id, hard.prompt(1).id, easy.prompt(1).id]
    assert env.prompt(1, "test").id == hard.prompt(1, "test").id
    p = env.prompt(1)
    assert env.grade(p, f"<think>x</think>{p.answer}") == 1.0


def test_options_change_the_recipe() -> None:
    made = find("open-rs(cosine=False, rounds=2)", "plan")()
    cycle = made.parts[1]
    assert isinstance(cycle, Cycle) and cycle.times == 2
    assert cycle.parts[0].method.shaping == () and cycle.parts[0].method.rollout.defaults()["n"] == 6
    (shaped,) = open_rs().parts[1].parts[0].method.shaping
    assert shaped.defaults() | {"outcome": "task", "format": "format", "cosine": 2.0, "form": 1.0} == shaped.defaults()
    with pytest.raises(UserError, match="rounds=0"):
        open_rs(rounds=0)


def test_the_whole_plan(tmp_path: Path) -> None:
    config = Config(task="arithmetic", prompts=2, eval_problems=4, sampling=Sampling(max_tokens=24), level=2)
    summary = run_plan(open_rs(rounds=2, steps=1, longest=24), config, tmp_path)
    assert list(summary["accuracy"]) == ["start", "look.1", "look.2"]
    assert summary["best"] in summary["accuracy"]
