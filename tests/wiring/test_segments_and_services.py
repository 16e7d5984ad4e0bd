"""Fine-grained RLHF pays where segments end, and its functions see the whole answer; an external scorer must be named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.rewards.runtime.file_reward import member
from tests.wiring.spies import traced

SEGMENTS = """
SEEN = []
def relevant(prompt, text, start, end):
    SEEN.append((prompt.last, text, start, end))
    return float(end)
"""


def test_a_function_sees_the_question_the_answer_and_the_segment(tmp_path: Path) -> None:
    file = tmp_path / "segments.py"
    file.write_text(SEGMENTS)
    name = f"fine-grained-rlhf(rewards='0.5*answer:{file}:relevant',steps=1)"
    trace = traced(name, num_generations=4, prompts=2)
    seen: Any = member(str(file), "SEEN")
    answers = {r.text for r in trace.steps[0].rollouts}
    assert {text for _, text, _, _ in seen} <= answers and all(q.endswith("=?") for q, *_ in seen)
    for r in trace.steps[0].rollouts:
        ends = [end for _, text, _, end in seen if text == r.text]
        assert r.reward == pytest.approx(0.5 * ends[0]) if ends else r.reward == 0.0
    assert trace.phases[0].method.shaping[0].params["coef"] == 0.3


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UserError, match=r"--plan\.rewards"):
        traced("fine-grained-rlhf")
    with pytest.raises(UserError, match="take --reward away"):
        traced("fine-grained-rlhf(rewards='answer:task',steps=1)", reward=lambda prompt, text: 1.0)
    with pytest.raises(UserError, match="outside of the task"):
        traced("authormist(steps=1)")


def test_the_service_is_what_pays() -> None:
    trace = traced("authormist(steps=2)", reward=lambda prompt, text: float(len(text)), num_generations=2)
    assert all(r.reward == len(r.text) for s in trace.steps for r in s.rollouts)
    assert trace.phases[0].method.terms[0].params == {"coef": 0.001, "kind": "k3"}
    one, two = trace.of("policy")
    assert two.reference == one.before and one.after == two.before
