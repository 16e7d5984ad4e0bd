"""The audit finds holes that are there, and none in a rule that has none."""

from __future__ import annotations

import json
import math

import pytest

from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Prompt
from posttrain.environments.school import school
from posttrain.rewards.auditing.audit import audit

SUMS = [Prompt.text(f"s{i}", f"What is {i} + {2 * i}?", str(3 * i)) for i in range(1, 9)]
CHOICES = [Prompt.text(f"c{i}", "Which?", letter, choices=["w", "x", "y", "z"]) for i, letter in enumerate("BCDB")]


def verdicts(report) -> dict[str, str]:
    return {row.family: row.verdict for row in report.rows}


@pytest.mark.parametrize(("rule", "prompts"), [("numeric", SUMS), ("exact_match", SUMS), ("choice", CHOICES)])
def test_sound_rules_pass(rule, prompts):
    report = audit(find(rule, "reward"), prompts)
    assert report.ok, report
    assert report.rows[0].mean == 1.0


def test_substring_search_is_found_out():
    report = audit(lambda prompt, text: float(prompt.answer in text), SUMS)
    found = verdicts(report)
    assert not report.ok
    assert found["gold among many numbers"] == found["negated"] == found["think tag not closed"] == "exploit"
    assert found["digit changed"] == found["empty"] == "ok"
    assert any(f.startswith("gold among many numbers: 8 of 8") for f in report.findings)


def test_any_letter_is_found_out():
    report = audit(lambda prompt, text: float(prompt.answer in text.replace(",", " ").split()), CHOICES)
    assert verdicts(report)["every choice listed"] == "exploit"


def test_length_alone_is_found_out():
    found = verdicts(audit(lambda prompt, text: min(len(text) / 1000, 1.0), SUMS))
    assert found["very long"] == found["one token repeated"] == "exploit"
    assert found["empty"] == "ok"


def test_pay_for_format_is_found_out():
    """0.1 for a think tag: less than gold (1), more than a wrong answer without one (0)."""

    def reward(prompt, text):
        return 1.0 if text == prompt.answer else 0.1 if "</think>" in text else 0.0

    report = audit(reward, SUMS)
    assert verdicts(report)["format without content"] == "paid"
    assert verdicts(report)["empty"] == "ok"
    assert any("0.1" in f and "paid" in f for f in report.findings)


def test_empty_scores_as_gold():
    assert verdicts(audit(find("repetition", "reward"), SUMS))["empty"] == "exploit"


def test_failures_are_told_not_scored():
    def reward(prompt, text):
        if not text.strip():
            raise IndexError("empty")
        return float(text == prompt.answer)

    report = audit(reward, SUMS)
    row = next(r for r in report.rows if r.family == "empty")
    assert (row.n, row.failed, row.verdict) == (0, 8, "failed") and math.isnan(row.mean)
    assert any(f.startswith("empty: the reward could not be computed on 8 of 8") for f in report.findings)


def test_the_tasks_own_grade():
    env = school("arithmetic")
    report = audit(find("task", "reward"), [env.prompt(i) for i in range(12)], environment=env)
    assert report.ok, report


def test_gold_is_written_in_the_style_the_reward_likes():
    def only_boxed(prompt, text):
        return float(f"\\boxed{{{prompt.answer}}}" in text)

    report = audit(only_boxed, SUMS)
    assert report.rows[0].family == "gold (boxed)" and report.rows[0].mean == 1.0


def test_report_is_plain_and_readable():
    report = audit(find("numeric", "reward"), SUMS)
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True
    assert "nothing to exploit" in str(report)


def test_prompts_without_gold_are_refused():
    with pytest.raises(UserError, match="gold"):
        audit(find("length", "reward"), [Prompt.text("x", "Say something.")])
