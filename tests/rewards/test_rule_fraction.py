"""AutoRule: the share of rules kept, and how statements become rules."""

from __future__ import annotations

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.runtime.score import RewardSum
from posttrain.systems.reward_shaping_safety import autorule as module
from posttrain.systems.reward_shaping_safety.autorule import checked, extract_rules, listed, normal, rule_fraction

PROMPT = Prompt.text("p", "2+2?", "4")
LONG, SHOUTS = ("long", lambda p, t: len(t) > 5), ("shouts", lambda p, t: t.isupper())


@pytest.mark.derived("reward/rule-fraction")
@pytest.mark.parametrize(
    ("text", "expected"),
    [("ABCDEFG", 2 / 3), ("abc", 0.0), ("abcdefg", 1 / 3), ("<think>A</think>B", 2 / 3), ("<think>1</think>4", 2 / 3)],
)
def test_share(text: str, expected: float) -> None:
    # (long, shouts, format): yes yes no; none; yes no no; yes no yes (the tags are not upper case); the same
    assert rule_fraction(PROMPT, text, rules=(LONG, SHOUTS, "format")) == pytest.approx(expected)


def test_the_rule_grades_itself_and_refuses_what_is_no_rule() -> None:
    assert module.validate() == []
    for wrong in ((), "format", (("x", 3),), ("formatt",)):
        with pytest.raises(UserError):
            RewardSum([("r", rule_fraction.but(rules=wrong), 1.0)])


def test_weighed_with_a_model() -> None:
    # 1 * (1 of 2 rules) + .3 * 2 = 1.1
    import torch

    r = Rollout.single(PROMPT, *[torch.zeros(1)] * 3, torch.ones(1), text="abcdefg")
    scorer = RewardSum([("rules", rule_fraction.but(rules=(LONG, SHOUTS)), 1.0), ("model", lambda p, t: 2.0, 0.3)])
    scorer.score([Group(PROMPT, [r])])
    assert r.reward == pytest.approx(1.1) and r.rewards == {"rules": 0.5, "model": 2.0}


def test_statements_are_merged_by_how_often_pairs_make_them() -> None:
    # "is kind" in three pairs (twice in one: counted once), "is short" in two, "is red" and "is blue" in one
    told = {
        "a": "Because\n- Is kind.\n- is  kind\n2. is short",
        "b": "* is kind\n- is red\nnot a statement",
        "c": "1) IS KIND\n- is short.\n- is blue",
    }
    pairs = [(PROMPT, name, "z") for name in told]
    assert listed(told["a"]) == ["Is kind.", "is  kind", "is short"] and normal("Is  Kind.") == "is kind"
    found = extract_rules(pairs, lambda p, chosen, rejected: told[chosen], listed, most=3)
    assert found == ["is kind", "is short", "is blue"]  # a tie goes by the alphabet
    assert extract_rules(pairs[::-1], lambda p, chosen, rejected: told[chosen], listed, most=3) == found
    rules = checked(found, lambda s: None if s == "is blue" else (lambda p, t: s.split()[1] in t))
    assert [name for name, _ in rules] == ["is kind", "is short"]
    assert rule_fraction(PROMPT, "a kind word", rules=rules) == 0.5
    with pytest.raises(UserError, match="at least 1"):
        extract_rules(pairs, lambda *_: "", listed, most=0)


def test_the_method() -> None:
    built = module.ruled_grpo
    assert [p.name for p in built.shaping] == ["kl-in-reward"] and built.terms == () and built.advantage.name == "grpo"
