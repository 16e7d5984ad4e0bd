"""QwenLong-L1.5 in stages: longer and longer documents, then a memory, then both in one; and the policy that is merged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Make, Phase
from posttrain.core.sampling import Sampling
from posttrain.systems.policy_gradient.qwenlong_l15 import qwenlong_stages


def test_what_follows_what() -> None:
    plan = qwenlong_stages(steps=3, parts=(1, 2), memory_parts=5, notes=7)
    phases = [p for p in plan.parts if isinstance(p, Phase)]
    assert [p.name for p in phases] == ["read-1", "read-2", "memory", "merged"]
    assert [str(p.method.rollout) for p in phases] == [
        "sample(n=8)",
        "sample(n=8)",
        "memory(reading=(1, 7))",
        "sample(n=8)",
    ]
    context = Context(None, Config(), {})
    assert [len(p.env(context).prompt(0).info["parts"]) for p in phases] == [1, 2, 5, 2]
    assert isinstance(plan.parts[3], Copy) and plan.parts[3].to == "single" and isinstance(plan.parts[5], Make)


def test_what_is_merged() -> None:
    """Base 1. Deltas of the reader (+4, -2), of the single (+2, +2): mean squares 10 and 4, weights 5/7 and 2/7; the second entries
    add to 0, which has no sign, so both are erased there: 1 + 5/7 * 4 + 2/7 * 2 = 1 + 24/7."""

    def filled(*x: float) -> TabularPolicy:
        policy = TabularPolicy(1, 1, 2, memory=False)
        with torch.no_grad():
            policy.table.copy_(torch.tensor(x).view_as(policy.table))
        return policy

    merge = next(p for p in qwenlong_stages().parts if isinstance(p, Make))
    reader, single = filled(5.0, -1.0), filled(3.0, 3.0)
    made = merge.make(Context(None, Config(), {"policy": reader, "single": single, "base": filled(1.0, 1.0)}))
    torch.testing.assert_close(made.table.flatten(), torch.tensor([1 + 24 / 7, 1.0]))
    assert reader.table.flatten().tolist() == [5.0, -1.0] and single.table.flatten().tolist() == [3.0, 3.0]


def test_it_runs_to_its_end_and_says_how_well_each_stage_did(tmp_path: Path) -> None:
    plan = qwenlong_stages(steps=1, parts=(1,), memory_parts=2, notes=4)
    config = Config(name="q", prompts=2, num_generations=2, sampling=Sampling(4), eval_problems=2)
    found = run_plan(plan, config, tmp_path)
    assert set(found["accuracy"]) == {"read-1", "memory", "merged"}


def test_no_stage_is_a_sentence() -> None:
    with pytest.raises(UserError, match="at least one stage"):
        qwenlong_stages(parts=())
