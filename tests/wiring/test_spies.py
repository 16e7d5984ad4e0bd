"""The spies see what they say they see: on GRPO, DPO and a plan, where everything is known."""

from __future__ import annotations

from typing import Any

import torch

from tests.wiring.spies import traced

ZEROS = [{"question": f"0+0+{i}-{i}=?", "answer": "0"} for i in range(20)]


def length(prompt: Any, text: str) -> float:
    return float(len(text))


def test_a_method() -> None:
    trace = traced("grpo", reward=length, num_generations=4)
    assert [(p.name, p.role, p.steps) for p in trace.phases] == [("train", "policy", 2)]
    assert [len(s.rollouts) for s in trace.steps] == [8, 8] and [len(s.kept) for s in trace.steps] == [2, 2]
    trained = [c for c in trace.calls if c.phase == "train"]
    assert {c.args[1] for c in trained} == {r.text for s in trace.steps for r in s.rollouts} and len(trained) == 16
    assert all(c.found == len(c.args[1]) and c.args[0].last.endswith("=?") for c in trained)
    first, second = trace.updates
    assert first.optimiser_steps == 1 and first.after == second.before != first.before
    assert first.reference == second.reference == first.before
    by_sampler = [d for d in trace.samples if d.step == 1]
    assert [(d.roles, d.weights) for d in by_sampler] == [(("policy",), second.before)]
    lengths = {len(r.actions) for s in trace.steps for r in s.rollouts}
    assert len(lengths) > 1, "answers of one length show no normalisation"


def test_the_pull_is_the_gradient_of_the_loss() -> None:
    """The loss of REINFORCE is the mean over answers of -sum(adv logp): the pull on a token is its credit over the answers."""
    made = traced("reinforce", reward=length, steps=1).updates[0]
    credit_BT = made.batch["adv_BT"] * made.batch["mask_BT"] / len(made.rows)
    (only,) = made.passes
    assert made.batch["adv_BT"].abs().sum() > 0
    torch.testing.assert_close(only.pull["logp_BT"], credit_BT)


def test_texts_can_be_said_for_the_policy() -> None:
    trace = traced("grpo", says=["0", "nothing"], num_generations=2, rows=ZEROS)
    assert [r.text for r in trace.steps[0].groups[0].rollouts] == ["0", "nothin"]
    assert [r.reward for r in trace.steps[0].groups[0].rollouts] == [1.0, 0.0]
    assert [r.stop for r in trace.steps[0].groups[0].rollouts] == ["stop", "length"]


def test_pairs() -> None:
    made = traced("dpo").updates[0]
    assert made.reference == made.before and made.batch["written_B"].tolist() == [1, 1, 1, 1]
    assert [made.rows[i].text for i in made.batch["rejected_P"].tolist()] == ["no", "no"]
