"""Robustness margins: the task says what is wrong, whole answers are scored, and the control has as many gradients."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from posttrain.core.errors import UserError
from posttrain.systems.reward_shaping_safety import rl_pgd_robustness as module
from tests.wiring.spies import ROWS, traced

UNTRAINED: dict[str, Any] = {"lr": None, "warmup": None, "prompts": None}  # a plan that trains nothing refuses them


class Spied(module.Answer):
    """An answer whose gradients and scored outputs are counted."""

    gradients: list[int] = []

    def logp(self, delta: Any, output: Any) -> Any:
        self.gradients.append(len(output)) if delta.requires_grad else None
        return super().logp(delta, output)


def test_what_is_wrong_is_what_the_task_grades_wrong() -> None:
    graded: list[tuple[str, str]] = []

    def grade(self: Any, prompt: Any, text: str) -> float:
        graded.append((prompt.last, text))
        return float(len(graded) == 1)  # right once: whatever is said later is wrong

    counts = {}
    for search in ("guided", "plain"):
        graded.clear()
        Spied.gradients = []
        with patch.object(module, "Answer", Spied), patch("posttrain.environments.data.DataEnvironment.grade", grade):
            trace = traced(f"rl-pgd-robustness(problems=3, most=0.5, searches='{search}')", rows=ROWS, **UNTRAINED)
        found = trace.summary["robustness"]
        assert set(found) == {f"margin_{search}", "right"} and found["right"] == 1
        counts[search] = len(Spied.gradients)
        assert max(Spied.gradients) > 1, "a whole answer, not its first token"
    assert counts["guided"] == counts["plain"] > 0, "as many gradients"
    assert not trace.updates, "nothing is trained"


def test_an_unknown_search_is_named() -> None:
    with pytest.raises(UserError, match="search"):
        traced("rl-pgd-robustness(searches='guidde')", rows=ROWS, **UNTRAINED)
