"""QwenLong-L1.5 in stages: longer and longer documents, then a memory, then both in one; and the policy that is merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy
from posttrain.core.sampling import Sampling
from posttrain.systems.policy_gradient.qwenlong_l15 import qwenlong_stages


def test_what_follows_what() -> None:
    plan = qwenlong_stages(steps=3, parts=(1, 2), memory_parts=5, notes=7)
    phases = [p for p in plan.parts if not isinstance(p, Copy)]
    assert [p.name for p in phases] == ["read-1", "read-2", "memory", "merged"]
    assert [str(p.method.rollout) for p in phases] == [
        "sample(n=8)",
        "sample(n=8)",
        "memory(reading=(1, 7))",
        "sample(n=8)",
    ]
    context = Context(None, Config(), {})
    assert [len(p.env(context).prompt(0).info["parts"]) for p in phases] == [1, 2, 5, 2]
    assert isinstance(plan.parts[2], Copy) and plan.parts[2].to == "single"


def test_what_is_merged() -> None:
    def filled(x: float) -> TabularPolicy:
        policy = TabularPolicy(1, 1, 2, memory=False)
        torch.nn.init.constant_(policy.table, x)
        return policy

    merged = qwenlong_stages(alpha=0.25).parts[-1]
    reader, single = filled(8.0), filled(4.0)
    made = merged.make(Context(None, Config(), {"policy": reader, "single": single}))
    assert made.table.flatten().tolist() == [5.0, 5.0]  # .25 * 8 + .75 * 4
    assert reader.table[0, 0, 0, 0] == 8.0 and single.table[0, 0, 0, 0] == 4.0


def test_it_runs_to_its_end_and_says_how_well_each_stage_did(tmp_path: Path) -> None:
    plan = qwenlong_stages(steps=1, parts=(1,), memory_parts=2, notes=4)
    config = Config(name="q", prompts=2, num_generations=2, sampling=Sampling(4), eval_problems=2)
    found = run_plan(plan, config, tmp_path)
    assert set(found["accuracy"]) == {"read-1", "memory", "merged"}


def test_no_stage_is_a_sentence() -> None:
    with pytest.raises(UserError, match="at least one stage"):
        qwenlong_stages(parts=())
