"""What sets HC-RLHF apart, on the registered plan: separate models of reward and cost, a pessimistic limit, a test on fresh prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.rewards.scorers.reward_model import RewardModel
from tests.wiring.spies import ROWS, traced

MORE = [{"question": f"{a}*{b}=?", "answer": str(a * b)} for a in range(20) for b in range(10)]


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def harm(prompt: Any, text: str) -> float:
    return len(text) / 2


def pairs(file: Path, chosen: str, rejected: str) -> str:
    rows = [{"prompt": r["question"], "chosen": chosen, "rejected": rejected} for r in ROWS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_what_is_missing_is_said_first() -> None:
    with pytest.raises(UserError, match=r"--plan.cost mine.py:harm or runs/NAME"):
        traced("hc-rlhf", reward=length)
    with pytest.raises(UserError, match=r"asks 200 prompts"):
        traced("hc-rlhf(cost='{file}:harm')", reward={"reward": length, "harm": harm})
    with pytest.raises(UserError, match=r"hc-rlhf is paid by a reward model"):
        traced("hc-rlhf(cost='numeric',n=2)", rows=MORE)


def test_the_cost_is_held_and_tested_on_prompts_that_training_has_not_seen() -> None:
    trace = traced(
        "hc-rlhf(cost='{file}:harm',limit=0.1,n=5,steps=2)", rows=MORE[:60], reward={"reward": length, "harm": harm},
        num_generations=2, prompts=60,
    )  # fmt: skip
    assert [p.name for p in trace.phases] == ["candidate"] and trace.parts[-1] == "safety-test"
    held = {"limit": 0.1, "delta": 0.05, "n": 5, "inflate": 2.0, "own": 4.0}  # the bound of the test to come
    assert held.items() <= trace.phases[0].method.shaping[0].defaults().items()
    first, second = (u.batch for u in trace.of("policy", "candidate"))
    earned = [b["reward:reward_B"] + b["reward:harm_B"] for b in (first, second)]  # --reward is the sum of both here
    paid = [b["reward_BT"].sum(-1) for b in (first, second)]
    assert paid[0].tolist() == pytest.approx(earned[0].tolist(), abs=1e-3), "lambda is 0"
    said = earned[1] > 0  # an answer of nothing costs nothing
    assert (paid[1] < earned[1] - 1e-2)[said].all(), "then the cost is paid"
    seen = {r.prompt.last for s in trace.steps for r in s.rollouts}
    asked = [c.args[0].last for c in trace.calls if c.name == "harm"][-5:]
    assert len(seen) > 40, "training has been through all of its prompts"
    assert len(set(asked)) == 5 and not set(asked) & seen
    assert trace.summary["safety"]["passed"] == 0.0 and "no solution found" in trace.summary["stopped"]


def test_hoeffdings_bound_is_by_the_range_that_is_typed_and_costs_outside_end_the_run() -> None:
    """U - mean = (most - least) sqrt(ln 20 / (2 * 5)) = 9 * .547333 = 4.925998 on 5 answers."""
    how: dict[str, Any] = {
        "rows": MORE[:60],
        "reward": {"reward": length, "harm": harm},
        "num_generations": 2,
        "prompts": 4,
    }
    plan = "hc-rlhf(cost='{{file}}:harm',n=5,steps=1,bound='hoeffding(least={},most={})')"
    safety = traced(plan.format(-1, 8), **how).summary["safety"]
    assert safety["upper"] - safety["mean"] == pytest.approx(4.925998, abs=1e-4)
    with pytest.raises(UserError, match=r"a cost is .*, outside of hoeffding\(least=-2, most=-1\)"):
        traced(plan.format(-2, -1), **how)


def test_the_exact_bound_meets_a_cost_that_is_not_0_or_1_before_anything_is_learned() -> None:
    with pytest.raises(UserError, match="the exact bound is for costs of 0 and 1"):
        traced(
            "hc-rlhf(cost='{file}:harm',n=5,steps=1,bound='exact')", rows=MORE[:60], num_generations=2, prompts=4,
            reward={"reward": length, "harm": harm}, callbacks=[NoStep()],
        )  # fmt: skip


class NoStep:
    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        pytest.fail("a step was taken")


def test_reward_and_cost_model_are_trained_from_preferences_of_their_own(tmp_path: Path) -> None:
    helpful, harmful = pairs(tmp_path / "helpful.jsonl", "much", "no"), pairs(tmp_path / "harm.jsonl", "safe", "hurt")
    trace = traced(f"hc-rlhf(pairs={helpful!r},cost={harmful!r},n=5,steps=1)", rows=MORE, num_generations=2)
    assert [p.name for p in trace.phases] == ["reward-model", "cost-model", "candidate"]
    for role, told in (("reward_model", {"much", "no"}), ("cost-model", {"safe", "hurt"})):
        assert {r.text for u in trace.of(role) for r in u.rows} == told, "each learns from its own file"
    made = [r for s in trace.steps if s.phase == "candidate" for r in s.rollouts]
    note = trace.summary["reward_model"]
    helps = RewardModel(trace.roles["reward_model"], note["mean"], note["std"]).scores(made)
    safe = RewardModel(trace.roles["cost-model"]).scores(made)
    assert [r.rewards["reward_model"] for r in made] == pytest.approx(helps.tolist(), abs=1e-4)
    assert max(map(abs, safe.tolist())) > 1e-3, "a score of 0 has no sign"
    assert [r.rewards["cost"] for r in made] == pytest.approx([-x for x in safe.tolist()], abs=1e-4), "safer costs less"
    assert trace.summary["safety"]["n"] == 5.0
