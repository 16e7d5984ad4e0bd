"""AutoRule: explain, extract, merge, verify by a served model; rules from a file; a learned reward beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.rewards.scorers.judge import Judge
from posttrain.systems.reward_shaping_safety import autorule as module
from tests.wiring.spies import ROWS, traced

PAIRS = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no"} for r in ROWS]
URL = "http://127.0.0.1:1/v1"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A served model: every (system, question) that it was asked; a rule about `a` is kept where the answer has one."""
    heard: list[tuple[str, str]] = []

    def said(self: Judge, questions: Any, system: str, attempt: int = 0) -> list[str]:
        out = []
        for q in questions:
            heard.append((system, q))
            if system == module.EXPLAIN:
                out.append("The first is a number.")
            elif system == module.EXTRACT or system == module.MERGE:
                out.append("- has an a\n- is short")
            else:
                answer = q.partition("<answer>\n")[2].partition("\n</answer>")[0]
                out.append(f'{{"score": {int("a" in answer) if "has an a" in system else 1}}}')
        return out

    monkeypatch.setattr(Judge, "said", said)
    return heard


def test_rules_are_read_off_the_pairs_and_verified(asked: list[tuple[str, str]]) -> None:
    functions = {"model": lambda prompt, text: float(len(text))}
    trace = traced(f"autorule(served='{URL}',steps=1,learned=0.5)", rows=PAIRS, reward=functions, num_generations=4)
    assert trace.parts == ["rules", "grpo"] and trace.summary["rules"] == ["has an a", "is short"]
    explained = [q for system, q in asked if system == module.EXPLAIN]
    assert len(explained) > 15 and all("<rejected>\nno\n" in q for q in explained)
    assert sum(system == module.EXTRACT for system, _ in asked) == len(explained)
    (merged,) = [q for system, q in asked if system == module.MERGE]
    assert merged.count("- has an a") == len(explained)
    for r in trace.steps[0].rollouts:
        assert r.rewards["rules"] == (0.5 + 0.5 * ("a" in r.text))
        assert r.reward == pytest.approx(r.rewards["rules"] + 0.5 * len(r.text))
    assert trace.phases[0].method.shaping[0].params["coef"] == 0.01 and not trace.phases[0].method.terms


def test_rules_from_a_file_need_no_pairs_to_be_explained(asked: list[tuple[str, str]], tmp_path: Path) -> None:
    file = tmp_path / "rules.txt"
    file.write_text("has an a\n\n")
    trace = traced(f"autorule(served='{URL}',rules='{file}',steps=1)", rows=PAIRS, num_generations=2)
    assert not any(system == module.EXPLAIN for system, _ in asked)
    assert all(r.reward == float("a" in r.text) for r in trace.steps[0].rollouts)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UserError, match=r"--plan\.served"):
        traced("autorule", rows=PAIRS)
    with pytest.raises(UserError, match="a rule per line"):
        traced(f"autorule(served='{URL}',rules='nowhere.txt')", rows=PAIRS)
