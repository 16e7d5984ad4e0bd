"""Debate reward: copies of the start argue in turn, the judge hears them, and the mix pays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.systems.reward_shaping_safety.debate_reward import played
from tests.wiring.spies import traced

LOG = """
import json
from pathlib import Path
def hear(*told):
    with Path(__file__).with_suffix(".jsonl").open("a") as log:
        log.write(json.dumps(told) + "\\n")
"""
JUDGE = """
def prefer(prompt, a, b):
    hear(prompt.content[0]["content"], a, b)
    return float(len(a) > len(b))
"""


def test_the_judge_hears_both_sides_and_the_mix_pays(tmp_path: Path) -> None:
    file = tmp_path / "debate_judge.py"
    file.write_text(LOG + JUDGE)
    name = f"debate-reward(judge='{file}:prefer',lam=0.25,turns=3,steps=2,evidence='words')"
    trace = traced(name, reward=lambda prompt, text: 2.0, num_generations=2, prompts=2, lr=0.03)
    heard = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    start = trace.of("policy")[0].before
    argued = [d for d in trace.samples if any("one short argument" in p for p in d.prompts)]
    assert len(argued) == 2 * 3 and {d.weights for d in argued} == {start}, "the debaters stay at the start"
    sides = [p.partition("Answer A: ")[2] for d in argued[:2] for p in d.prompts[:1]]
    assert sides[0] != sides[1], "the sides take turns"
    assert heard and all(text.count("\nFor A:") == 2 and text.count("\nFor B:") == 1 for text, _, _ in heard)
    rollouts = {r.text for s in trace.steps for r in s.rollouts}
    assert {a for _, a, _ in heard} <= rollouts | {b for _, _, b in heard}
    update = trace.of("policy")[0]
    kept = [r for g in trace.steps[0].kept for r in g.rollouts]
    assert [r.rewards["aux"] in (0.0, 0.5, 1.0) for r in kept] == [True] * 4
    paid = update.batch["reward_BT"].sum(-1).tolist()  # the KL is 0 at the start
    assert paid == pytest.approx([0.75 * r.reward + 0.25 * r.rewards["aux"] for r in kept], abs=1e-4)
    batch, kept = trace.of("policy")[1].batch, [r for g in trace.steps[1].kept for r in g.rollouts]
    kl_B = ((batch["old_logp_BT"] - batch["ref_logp_BT"]) * batch["mask_BT"]).sum(-1)
    mixed_B = torch.tensor([0.75 * r.reward + 0.25 * r.rewards["aux"] for r in kept])
    assert kl_B.abs().max() > 1e-2
    torch.testing.assert_close(batch["reward_BT"].sum(-1), mixed_B - 0.02 * kl_B, rtol=1e-4, atol=1e-5)


def test_without_a_judge_there_is_no_debate() -> None:
    with pytest.raises(UserError, match=r"--plan\.judge"):
        traced("debate-reward")


EVIDENCE = """
def prefer(prompt, a, b):
    seen = prompt.content[0]["content"].split("\\n")
    hear(seen, a, b)
    return {"first": 1.0, "second": 0.0, "third": 0.0}[seen[0]] if len(seen) == 1 else 0.5
"""


def test_the_judge_sees_the_shown_pieces_alone_and_each_side_shows_its_best(tmp_path: Path) -> None:
    file = tmp_path / "evidence_judge.py"
    file.write_text(LOG + EVIDENCE)
    rows = [{"question": f"{i}?", "answer": "1", "pieces": ["first", "second", "third"]} for i in range(24)]
    name = f"debate-reward(judge='{file}:prefer',lam=0.25,turns=1,steps=1,evidence='pieces')"
    trace = traced(name, rows=rows, reward=lambda prompt, text: 2.0, num_generations=2, prompts=2)
    heard = [json.loads(line) for line in file.with_suffix(".jsonl").read_text().splitlines()]
    assert sorted({tuple(seen) for seen, _, _ in heard}) == [("first",), ("second",), ("third",)], (
        "never the question itself"
    )
    assert not any("argument" in p for d in trace.samples for p in d.prompts)
    kept = [r for g in trace.steps[0].kept for r in g.rollouts]
    baseline = {b for _, _, b in heard}
    assert all(r.rewards["aux"] == 1.0 for r in kept if r.text not in baseline), "the side of the answer shows `first`"


def test_the_game_is_played_out() -> None:
    # of two pieces the second is shown by the other side: 0 is only good together with 1, which it will not show
    worth = {frozenset({0, 1}): 1.0, frozenset({0, 2}): -1.0, frozenset({1, 2}): 0.5}
    assert played(worth, 3) == 0.5
    assert played({frozenset({0, 1, 2}): -0.5}, 3) == -0.5  # all are shown: nothing to choose
