"""AdaCoT: which questions each phase asks, what they are labelled, and the whole plan on the embedded model."""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task
from posttrain.systems.efficient_reasoning.adacot import Labelled, adacot, questions


def test_labels_and_demonstrations() -> None:
    hard, easy = task("arithmetic", level=3), task("arithmetic", level=1)
    both, skewed = Labelled(hard, easy), Labelled(hard, easy, hard_only=True)
    a, b = both.prompt(0), both.prompt(1)
    assert (a.id, b.id) == (hard.prompt(0).id, easy.prompt(0).id)
    assert a.info["cot"] and not b.info["cot"]
    assert a.info["demonstration"] == f"<think>{a.info['steps']}</think>{a.answer}"
    assert b.info["demonstration"] == f"<think></think>{b.answer}"
    assert all(skewed.prompt(i).info["cot"] and skewed.prompt(i).id == hard.prompt(i).id for i in range(3))
    assert all(both.grade(p, p.info["demonstration"]) == 1.0 for p in (a, b))


def test_only_the_skewed_phase_masks_the_decision() -> None:
    sft, skewed, mixed = adacot().parts
    assert (sft.name, skewed.method.advantage.name, mixed.method.advantage.name) == ("sft", "adacot", "gae")
    assert skewed.method.advantage.params == {}  # the token after <think>, wherever it is
    assert [p.name for p in adacot(skewed=0).parts] == ["sft", "mixed"]
    assert adacot(mask=False).parts[1].method.advantage.name == "gae"  # what the paper compares with


def test_the_whole_plan(tmp_path: Path) -> None:
    config = Config(task="arithmetic", prompts=2, eval_problems=2, sampling=Sampling(max_tokens=24), level=2)
    summary = run_plan(adacot(1, 1, 1), config, tmp_path)
    assert summary["plan"] == "adacot" and not summary["stopped"]


def test_rows_that_are_read_from_the_disk_are_learned_from(tmp_path: Path) -> None:
    rows = [{"question": f"{i}+1?", "answer": f"one more\n#### {i + 1}", "cot": bool(i % 2)} for i in range(24)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    streamed = task(str(tmp_path / "rows.jsonl"), stream=True)
    both, hard = (questions(streamed, "cot", hard_only, True) for hard_only in (False, True))
    assert {both.prompt(i).info["cot"] for i in range(12)} == {True, False}
    assert {hard.prompt(i).info["cot"] for i in range(6)} == {True}
