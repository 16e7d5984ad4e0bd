"""The share of explicit rules that an answer keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.registry import find, reward
from posttrain.core.selfcheck import check_ready, problems
from posttrain.core.types import Prompt

Rule = str | tuple[str, Callable[[Prompt, str], Any]]  # a registered reward, or (name, checker)


@reward(title="AutoRule", paper="arXiv:2506.15651")
def rule_fraction(prompt: Prompt, text: str, rules: Sequence[Rule] = ("format", "length")) -> float:
    """AutoRule: ask of each explicit rule whether the answer keeps it, yes or no, and average.

    r = 1/|R| sum_j v_j(x, y), v in {0, 1};  a registered reward is kept where it gives 1, a checker where it says true
    Rules come from reasoning about preferences: rewards/rule_extraction.py.
    """
    return sum(kept(rule, prompt, text) for rule in rules) / len(rules)


def kept(rule: Rule, prompt: Prompt, text: str) -> bool:
    if isinstance(rule, str):
        return bool(find(rule, "reward")(prompt, text) >= 1)
    return bool(rule[1](prompt, text))


def ready(rules: Sequence[Rule] = ("format", "length"), **_: object) -> None:
    """Refuse no rules at all, names that nobody has, and what is not a rule, before a run starts."""
    if not rules or isinstance(rules, str):
        raise UserError(f"rules is {rules!r}; give a list of at least one, like ['format', 'length']")
    for rule in rules:
        if isinstance(rule, str):
            check_ready(find(rule, "reward"))
        elif not (isinstance(rule, tuple) and len(rule) == 2 and callable(rule[1])):
            raise UserError(f"{rule!r} is no rule; give the name of a reward, or (name, function of prompt and text)")


def validate() -> list[str]:
    """Keeping every rule is full marks, breaking one is not."""
    prompt = Prompt.text("rules", "2+2?")
    polite = ("polite", lambda prompt, text: "please" in text)
    both = rule_fraction.but(rules=("format", polite))
    return problems(
        both, [(prompt, "<think>2</think>4 please", "<think>2</think>4"), (prompt, "<think>a</think>please", "x")]
    )
