"""Fine-grained RLHF pays where segments end, and its functions see the whole answer; an external scorer must be named."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from tests.wiring.spies import traced

SEGMENTS = """
def relevant(prompt, text, start, end):
    return float(end) + 100.0 * prompt.last.endswith("=?") + 1000.0 * len(text)
"""


def test_a_function_sees_the_question_the_answer_and_the_segment(tmp_path: Path) -> None:
    file = tmp_path / "segments.py"
    file.write_text(SEGMENTS)
    name = f"fine-grained-rlhf(rewards='0.5*answer:{file}:relevant',steps=1)"
    trace = traced(name, num_generations=4, prompts=2)
    for r in trace.steps[0].rollouts:
        assert r.reward == pytest.approx(0.5 * (1001 * len(r.text) + 100) if r.text.strip() else 0.0), r.text
    assert trace.phases[0].method.shaping[0].params["coef"] == 0.3


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UserError, match=r"--plan\.rewards"):
        traced("fine-grained-rlhf")
    with pytest.raises(UserError, match="does not use --reward"):
        traced("fine-grained-rlhf(rewards='answer:task',steps=1)", reward=lambda prompt, text: 1.0)
    with pytest.raises(UserError, match="outside of the task"):
        traced("authormist(steps=1)")


def test_the_service_is_what_pays() -> None:
    trace = traced("authormist(steps=2)", reward=lambda prompt, text: float(len(text)), num_generations=2)
    assert all(r.reward == len(r.text) for s in trace.steps for r in s.rollouts)
    assert trace.phases[0].method.terms[0].params == {"coef": 0.001, "kind": "k3"}
    one, two = trace.of("policy")
    assert two.reference == one.before and one.after == two.before
