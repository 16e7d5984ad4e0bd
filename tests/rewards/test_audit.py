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


def test_a_reward_that_reads_only_the_end_is_found_out():
    """It looks for the gold answer in the last 50 characters: it cannot see a tag that was never closed, nor what was taken back."""
    found = verdicts(audit(lambda prompt, text: float(prompt.answer in text[-50:].split()), SUMS))
    assert found["long thinking not closed"] == "exploit" and found["gold among many numbers"] == "ok"
    numeric = find("numeric", "reward")
    found = verdicts(audit(lambda prompt, text: numeric(prompt, text[-50:]), SUMS))
    assert found["long thinking not closed"] == "exploit"
    found = verdicts(
        audit(lambda prompt, text: float(f" {prompt.answer} " in text[-50:] or text == prompt.answer), SUMS)
    )
    assert found["gold taken back"] == "exploit"


def test_right_answers_in_other_words_are_tried_and_those_missed_are_told():
    rows = verdicts(audit(find("numeric", "reward"), SUMS))
    right = (
        "as a sentence",
        "in a box",
        "in answer tags",
        "in bold",
        "after ####",
        "with a remark after it",
        "with a decimal point",
    )
    assert all(rows[name] == "ok" for name in right) and rows["in words"] == "missed"
    report = audit(lambda prompt, text: float(text == prompt.answer), SUMS)
    assert report.ok and any(n.startswith("right, but as a sentence: 8 of 8 score less") for n in report.notes)


def test_wordings_by_hand():
    from posttrain.rewards.auditing.wordings import WORDINGS

    for gold, name, text in [("7", "in words", "seven"), ("42", "in words", "forty-two"), ("70", "in words", "seventy"),
                             ("7", "with a decimal point", "7.0"), ("1234", "with thousands marked", "1,234"),
                             ("1,234", "with thousands marked", "1234"), ("yes", "in other case", "YES"),
                             ("100", "in words", None), ("x", "with a decimal point", None), ("7", "in other case", None)]:  # fmt: skip
        assert WORDINGS[name](SUMS[0], gold) == text


def test_exceptions_and_missing_columns_are_shown():
    def wants(completions, level):
        return [1.0] * len(completions)

    report = audit(wants, SUMS)
    assert report.rows[0].verdict == "failed" and "asks for the column 'level'" in report.findings[0]

    def raises(prompt, text):
        return 1.0 if text == prompt.answer else [][7]

    report = audit(raises, SUMS)
    assert any("IndexError: list index out of range test_audit.py:" in f for f in report.findings)
    json.dumps(report.to_dict(), allow_nan=False)
