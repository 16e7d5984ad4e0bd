"""The plan that writes prompts: only the writer's MLP moves, the frozen model stays, and the summary tells what was found."""

from __future__ import annotations

import pytest

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.environments.task import task
from posttrain.systems.policy_gradient.rlprompt import Shots, rlprompt


def test_a_few_steps_on_the_embedded_model(tmp_path) -> None:
    config = Config(task="counting", prompts=2, eval_problems=10, name="w")
    summary = run_plan(rlprompt(steps=2, length=2, n=2, shots=24), config, tmp_path)
    assert isinstance(summary["prompt"], str) and summary["prompts_tried"] >= 1
    for name in ("accuracy_with_prompt", "accuracy_without_prompt"):
        assert 0 <= summary[name] <= 1
    again = run_plan(
        rlprompt(steps=2, length=2, n=2, shots=24), config, tmp_path
    )  # finished: read back, not done again
    assert again["prompt"] == summary["prompt"]


def test_the_shots_know_their_labels_and_refuse_what_is_no_choice() -> None:
    shots = Shots(task("counting", think=False), 64)
    assert shots.size == 64 and set(shots.labels) == {str(p.answer) for p in shots.inputs} and len(shots.labels) <= 10
    with pytest.raises(UserError, match="writes prompts for a choice of 2 to 20"):
        Shots(task("arithmetic", think=False), 64)
    with pytest.raises(UserError, match="2 prompts an input at least"):
        rlprompt(n=1)
