"""The plan that writes prompts: only the writer's MLP moves, the frozen model stays, and the summary tells what was found."""

from __future__ import annotations

import pytest

from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.environments.task import task
from posttrain.systems.policy_gradient.rlprompt import Shots, rlprompt


def test_a_few_steps_on_the_embedded_model(tmp_path) -> None:
    config = Config(task="counting", eval_problems=10, name="w")
    summary = run_plan(rlprompt(steps=2, length=2, n=2, shots=3, hidden=32), config, tmp_path)
    assert isinstance(summary["prompt"], str) and summary["prompts_tried"] >= 1
    for name in ("accuracy_with_prompt", "accuracy_without_prompt"):
        assert 0 <= summary[name] <= 1
    again = run_plan(
        rlprompt(steps=2, length=2, n=2, shots=3, hidden=32), config, tmp_path
    )  # finished: read back, not done again
    assert again["prompt"] == summary["prompt"]


def test_the_shots_know_their_labels_and_refuse_what_is_no_choice() -> None:
    shots = Shots(task("counting", think=False), 3)
    counts = [sum(str(p.answer) == label for p in shots.inputs) for label in shots.labels]
    assert 2 <= len(shots.labels) <= 20 and set(counts) <= {1, 2, 3} and 3 in counts
    with pytest.raises(UserError, match="writes prompts for a choice of 2 to 20"):
        Shots(task("arithmetic", think=False), 64)
    with pytest.raises(UserError, match="2 prompts a step at least"):
        rlprompt(n=1)
