"""What sets RLPrompt apart, on the registered plan."""

from __future__ import annotations

import torch

from tests.wiring.spies import traced

ROWS = [{"question": f"is {i} odd?", "answer": "yes" if i % 2 else "no"} for i in range(40)]


def test_every_prompt_is_tried_on_all_shots_and_only_the_mlp_learns() -> None:
    trace = traced("rlprompt(steps=2, length=3, n=4, shots=5, hidden=8, lr=0.01)", rows=ROWS, lr=None, prompts=None)
    assert trace.parts == ["write", "choose"]
    for step in trace.steps:
        assert [len(g.rollouts) for g in step.groups] == [4]
        assert all(0 <= r.rewards["right"] <= 1 and (r.rewards["right"] * 10) % 1 < 1e-6 for r in step.rollouts), (
            "of ten shots"
        )
        same = {r.text: r.reward for r in step.rollouts}
        assert all(same[r.text] == r.reward for r in step.rollouts)
        assert all(len(r.actions) <= 3 for r in step.rollouts)
    assert {d.how.top_k for d in trace.samples if d.phase == "write"} == {256}
    for step, update in zip(trace.steps, trace.of("writer"), strict=True):  # z-scores of the prompts of a step, times 5
        earned_N = torch.tensor([r.reward for r in step.rollouts])
        due_N = 5 * (earned_N - earned_N.mean()) / (earned_N.std() + 1e-4)
        torch.testing.assert_close(update.batch["reward_BT"].sum(-1), due_N, rtol=1e-3, atol=1e-3)
    first, second = trace.of("writer")
    writer = trace.roles["writer"]
    assert {n.split(".")[1] for n, p in writer.named_parameters() if p.requires_grad} == {"mlp"}
    assert first.reference != second.reference and second.reference != second.before, "the target follows slowly"
    assert trace.summary["prompt"] is not None and trace.summary["held_out_inputs"] >= 0


def test_held_out_labels_that_no_shot_has_do_not_end_it(tmp_path) -> None:
    import json

    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    train.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    test.write_text(json.dumps({"question": "is it odd?", "answer": "perhaps"}) + "\n")
    task = f"{train}(test='{test}')"
    trace = traced("rlprompt(steps=1, length=2, n=2, shots=2, hidden=8)", rows=task, lr=None, prompts=None)
    assert trace.summary["held_out_inputs"] == 0 and "accuracy_with_prompt" not in trace.summary
