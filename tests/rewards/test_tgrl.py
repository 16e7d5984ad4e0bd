"""TGRL's reward, worked out by hand.

The claim to come: tgrl-tool trained on arithmetic against RL without a tool, and with form=0, equal episodes and updates; accuracy on dates, units and
counting, which were not trained on, and tokens per answer; expected: the answer tool with the form reward transfers best, with fewer tokens.
"""

from __future__ import annotations

import pytest
import torch

from posttrain.core.types import Group, Prompt, Rollout
from posttrain.systems.agents_multiturn.tgrl_tool import ANSWER, OutcomeAndForm


def episode(stop: str, grade: float | None, *turns: tuple[int, int, bool]) -> Rollout:
    """turns: how many calls, how many faults, whether a call was repaired."""
    made = Rollout.single(
        Prompt.text("p", "q"), torch.zeros(1).long(), torch.zeros(1).long(), torch.zeros(1), reward=0.0
    )
    made.stop, made.turns[0].reward = stop, grade
    call = {"name": "answer", "result": "5"}
    records = [
        {"calls": [call | {"repaired": mended} for _ in range(calls)], "faults": ["no"] * faults}
        for calls, faults, mended in turns
    ]
    made.info = {"tools": records}
    return made


@pytest.mark.derived("scorer/outcome-and-form")
def test_outcome_and_form() -> None:
    """right and valid 1 + 1; wrong and valid -1 + 1; right after a fault, or a repaired call, 1 - 1; no answer 0 - 1, whatever was said."""
    good = (1, 0, False)
    table = [
        (episode("tool_end", 1.0, good, good), 2.0),
        (episode("tool_end", 0.0, good), 0.0),
        (episode("tool_end", 1.0, (0, 1, False), good), 0.0),
        (episode("tool_end", 1.0, (1, 0, True)), 0.0),
        (episode("answered", 1.0, good, (0, 0, False)), -1.0),
        (episode("max_turns", None, good), -1.0),
        (episode("structural", 0.0), -1.0),
    ]
    for r, want in table:
        for _ in range(2):  # scoring again says the same
            OutcomeAndForm().score([Group(r.prompt, [r])])
            assert r.total == want, r.info
    unboxed = episode("tool_end", 1.0, good, good)
    unboxed.info["tools"][0]["calls"][0]["result"] = "error: the answer is not in a box"
    OutcomeAndForm().score([Group(unboxed.prompt, [unboxed])])
    assert unboxed.total == 0.0
    r = table[3][0]
    OutcomeAndForm(0.5).score([Group(r.prompt, [r])])
    assert r.total == 0.5 and r.rewards == {"outcome": 1.0, "form": -1.0}


def test_the_answer_tool_wants_a_box() -> None:
    assert ANSWER({"text": r"\boxed{5}"}) == r"\boxed{5}" and "write it as" in ANSWER({"text": "5"})
    assert ANSWER.ends
