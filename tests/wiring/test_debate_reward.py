"""Debate reward: copies of the start argue in turn, the judge hears them, and the mix pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.rewards.runtime.file_reward import member
from tests.wiring.spies import traced

JUDGE = """
HEARD = []
def prefer(prompt, a, b):
    HEARD.append((prompt.content[0]["content"], a, b))
    return float(len(a) > len(b))
"""


def test_the_judge_hears_both_sides_and_the_mix_pays(tmp_path: Path) -> None:
    file = tmp_path / "debate_judge.py"
    file.write_text(JUDGE)
    name = f"debate-reward(judge='{file}:prefer',lam=0.25,turns=3,steps=2)"
    trace = traced(name, reward=lambda prompt, text: 2.0, num_generations=2, prompts=2)
    heard: Any = member(str(file), "HEARD")
    start = trace.of("policy")[0].before
    argued = [d for d in trace.samples if any("one short argument" in p for p in d.prompts)]
    assert len(argued) == 2 * 3 and {d.weights for d in argued} == {start}, "the debaters stay at the start"
    sides = [p.partition("Answer A: ")[2] for d in argued[:2] for p in d.prompts[:1]]
    assert sides[0] != sides[1], "the sides take turns"
    assert all(text.count("\nFor A:") == 2 and text.count("\nFor B:") == 1 for text, _, _ in heard)
    rollouts = {r.text for s in trace.steps for r in s.rollouts}
    assert {a for _, a, _ in heard} <= rollouts | {b for _, _, b in heard}
    update = trace.of("policy")[0]
    kept = [r for g in trace.steps[0].kept for r in g.rollouts]
    assert [r.rewards["aux"] in (0.0, 0.5, 1.0) for r in kept] == [True] * 4
    paid = update.batch["reward_BT"].sum(-1).tolist()  # the KL is 0 at the start
    assert paid == pytest.approx([0.75 * r.reward + 0.25 * r.rewards["aux"] for r in kept], abs=1e-4)


def test_without_a_judge_there_is_no_debate() -> None:
    with pytest.raises(UserError, match=r"--plan\.judge"):
        traced("debate-reward")
