"""What sets QwenLong-L1.5 apart, on the registered method and plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.systems.policy_gradient import qwenlong_l15 as stages
from posttrain.weights.soup import sce
from tests.wiring.spies import ROWS, traced
from tests.wiring.trace import fingerprint

PAPERS = [{"question": f"who is {i}?", "answer": f"m{i}", "document": "ann is here " * (1 + i % 2)} for i in range(24)]


def test_as_many_prompts_of_each_task_and_the_true_entropy() -> None:
    rows = [r | {"task": "a" if i < 20 else "b"} for i, r in enumerate(ROWS)]
    trace = traced("qwenlong-l15", rows=rows, num_generations=2, reward=lambda prompt, text: float(len(text)))
    for step in trace.steps:
        assert sorted(g.prompt.info["task"] for g in step.groups) == ["a", "b"]
    first = trace.updates[0]
    H_BT = (
        first.passes[0].batch["entropy_BT"] if "entropy_BT" in first.passes[0].batch else first.batch["old_entropy_BT"]
    )
    assert float(first.batch["old_entropy_BT"].max()) > 0
    torch.testing.assert_close(first.batch["old_entropy_BT"] * first.batch["mask_BT"], H_BT * first.batch["mask_BT"])
    assert [u.optimiser_steps for u in trace.updates] == [1, 1] and not any(u.reference for u in trace.updates)


def test_a_file_without_tasks_is_one_task() -> None:
    assert len(traced("qwenlong-l15", num_generations=2).steps) == 2


def test_stages_read_your_documents_then_with_a_memory_then_merged() -> None:
    asked: list[Any] = []

    def paid(prompt: Any, text: str) -> float:
        asked.append(prompt)
        return float(len(text))

    trace = traced(
        "qwenlong-stages(steps=1, parts=(1, 2), memory_parts=2, notes=3, words=3)", rows=PAPERS, reward=paid, num_generations=2
    )  # fmt: skip
    assert trace.parts == ["policy->base", "read-1", "read-2", "policy->single", "memory", "", "merged"]
    assert {len(p.info["parts"]) for p in (g.prompt for s in trace.steps if s.phase == "read-1" for g in s.groups)} == {
        1
    }
    assert all("ann is here" in g.prompt.last for s in trace.steps if s.phase.startswith("read") for g in s.groups)
    assert asked and trace.phases[2].method.rollout.name == "memory"
    single, reader = trace.of(phase="read-2")[-1].after, trace.of(phase="memory")[-1].after
    assert trace.of(phase="merged")[0].before not in (single, reader), "the last phase begins with the merge"


def test_the_merge_is_of_both_readers_from_where_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[list[str]] = []

    def seen(base: Any, others: list[Any]) -> None:
        merged.append([fingerprint(p) for p in (base, *others)])
        sce(base, others)

    monkeypatch.setattr(stages, "sce", seen)
    name = "qwenlong-stages(steps=1, parts=(1,), memory_parts=2, notes=3, words=3)"
    trace = traced(name, rows=PAPERS, num_generations=2, reward=lambda prompt, text: float(len(text)))
    read, memory = trace.of(phase="read-1"), trace.of(phase="memory")
    assert merged == [[read[0].before, memory[-1].after, read[-1].after]] and len(set(merged[0])) == 3


def test_stages_ask_for_documents() -> None:
    with pytest.raises(pt.UserError, match="no column `document`"):
        traced("qwenlong-stages")
