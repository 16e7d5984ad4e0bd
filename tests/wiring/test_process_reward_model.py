"""Process reward model: answers up to the end of each step, the score where it ends, and cross-entropy with what the step is worth."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import logsigmoid

from posttrain.core.errors import UserError
from tests.wiring.spies import ROWS, WORDS, traced

STEPS = [
    {"question": f"{i}+{i}?", "completions": ["first", "then", f"{2 * i}"], "labels": [1.0, 0.25, i % 2]}
    for i in range(24)
]


def test_each_step_is_scored_where_it_ends_and_learns_what_it_is_worth() -> None:
    trace = traced("process-reward-model", rows=STEPS, prompts=2, steps=2)
    for step in trace.steps:
        for group in step.groups:
            said = group.prompt.info["completions"]
            texts = ["".join(WORDS[i] for i in r.actions.tolist()) for r in group.rollouts]
            assert texts == ["first", "first\nthen", f"first\nthen\n{said[2]}"]
            assert [r.reward for r in group.rollouts] == pytest.approx(
                [1.0, 0.25, float(group.prompt.info["labels"][2])]
            )
    assert not trace.calls and not trace.samples, "nothing is sampled, and no reward is asked"
    update = trace.updates[0]
    assert update.role == "reward_model" and update.optimiser_steps == 1
    assert update.before != trace.updates[1].after, "the trunk learns as soon as the head is not 0"
    done = update.passes[0]
    score_B, own_BT = done.batch["score_B"], done.batch["mask_BT"] > 0
    worth_B = torch.where(own_BT, done.batch["reward_BT"], 0.0).sum(-1)
    loss_B = -worth_B * logsigmoid(score_B) - (1 - worth_B) * logsigmoid(-score_B)
    assert done.loss == pytest.approx(float(loss_B.mean()), abs=1e-5), "a mean over steps, however long"
    pull_B = (worth_B - score_B.sigmoid()) / len(score_B)
    torch.testing.assert_close(done.pull["score_B"], pull_B, atol=1e-6, rtol=1e-4)


def test_rows_without_labelled_steps_are_refused() -> None:
    with pytest.raises(UserError, match="labels"):
        traced("process-reward-model", rows=ROWS)
