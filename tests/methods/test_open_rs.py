"""Open-RS: which questions it mixes, which rewards it adds up, and the whole plan on the embedded model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.systems.efficient_reasoning.open_rs import Mixed, mixed, open_rs


def test_every_second_question_is_easy_and_the_test_is_not() -> None:
    hard, easy = task("arithmetic", level=3), task("arithmetic", level=1)
    env = Mixed(hard, easy)
    asked = [env.prompt(i).id for i in range(4)]
    assert asked == [hard.prompt(0).id, easy.prompt(0).id, hard.prompt(1).id, easy.prompt(1).id]
    assert env.prompt(1, "test").id == hard.prompt(1, "test").id
    p = env.prompt(1)
    assert env.grade(p, f"<think>x</think>{p.answer}") == 1.0


def test_options_change_the_recipe() -> None:
    (learn,) = find("open-rs(cosine=False, rounds=2)", "plan")().parts
    assert learn.steps == 20 and learn.changes == {"eval_every": 10}
    assert learn.method.shaping == () and learn.method.rollout.defaults()["n"] == 6
    (shaped,) = open_rs().parts[0].method.shaping
    assert shaped.defaults() | {"outcome": "right", "format": "form", "cosine": 2.0, "form": 1.0} == shaped.defaults()
    with pytest.raises(UserError, match="rounds=0"):
        open_rs(rounds=0)


def test_where_easy_questions_come_from(tmp_path: Path) -> None:
    rows = [{"question": f"{i}+1?", "answer": i + 1, "difficulty": i} for i in range(40)]
    files = {name: tmp_path / f"{name}.jsonl" for name in ("mine", "easy", "bare")}
    files["mine"].write_text("".join(json.dumps(r) + "\n" for r in rows))
    files["easy"].write_text("".join(json.dumps(r | {"question": "easy " + r["question"]}) + "\n" for r in rows))
    files["bare"].write_text("".join(json.dumps({k: r[k] for k in ("question", "answer")}) + "\n" for r in rows))

    def asked(name: str, easy: int | str | None) -> list[Prompt]:
        env = mixed(Context(None, Config(task=str(files[name])), {}), easy)
        return [env.prompt(i) for i in range(8)]

    hard, soft = ([p.info["difficulty"] for p in asked("mine", "difficulty")[k::2]] for k in (0, 1))
    assert min(hard) > max(soft)  # every second one of the easier half
    assert [p.last.startswith("easy") for p in asked("bare", str(files["easy"]))] == [False, True] * 4
    assert len({p.id for p in asked("bare", "difficulty")}) == 8  # as it is: a mixture already
    assert [p.id for p in asked("mine", None)] == [p.id for p in asked("mine", None)]
    with pytest.raises(UserError, match="has no levels; name a column or a file"):
        asked("mine", 1)


def test_the_whole_plan(tmp_path: Path) -> None:
    config = Config(task="arithmetic", prompts=2, eval_problems=4, sampling=Sampling(max_tokens=24), level=2)
    summary = run_plan(open_rs(rounds=2, steps=1), config, tmp_path)
    assert list(summary["accuracy"]) == ["step 1", "step 2"] and summary["best_round"] in summary["accuracy"]
    with pytest.raises(UserError, match=r"--plan\.steps"):
        run_plan(open_rs(rounds=2, steps=1), dataclasses.replace(config, eval_every=3, name="other"), tmp_path)
