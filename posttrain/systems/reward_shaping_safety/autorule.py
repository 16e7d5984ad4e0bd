"""AutoRule: GRPO on the share of extracted rules that an answer keeps, beside a learned reward of less weight.

posttrain run autorule --reward "rule-fraction(rules=['format', 'length']) + 0.3*task"

Departures: the paper has a reasoning model explain each pair, reads rules off its reasoning, merges them with a
model, and asks an 8B model of each rule whether an answer keeps it. Here the reading and the merging (by counting)
are functions for Python (`extract_rules`, `checked`), no model explains or verifies, and rules named on the command
line are registered rewards. Without `--reward` this is GRPO on the task's own grade with a KL of 0.01 in the reward,
and no warning is given. The paper's second part is a reward model: add `0.3*runs/NAME`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import find, reward
from posttrain.core.selfcheck import check_ready, problems
from posttrain.core.types import Prompt
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- what answers are worth
# Rules from preferences (AutoRule, arXiv:2506.15651): explain each pair, read statements off the reasoning, merge them.
#
# What explains, reads and checks are functions that are given (a language model, a program); what is here is deterministic.

Explain = Callable[[Prompt, str, str], str]  # (prompt, chosen, rejected) -> reasoning about why
Read = Callable[[str], Sequence[str]]  # reasoning -> statements
Checker = Callable[[Prompt, str], Any]


def extract_rules(pairs: Sequence[tuple[Prompt, str, str]], explain: Explain, read: Read, most: int = 20) -> list[str]:
    """The `most` statements that the reasoning about the pairs makes most often; once a pair, ties by the alphabet."""
    if most < 1:
        raise UserError(f"most is {most}; at least 1 rule must be left")
    counts: Counter[str] = Counter()
    for prompt, chosen, rejected in pairs:
        counts.update({normal(s) for s in read(explain(prompt, chosen, rejected)) if normal(s)})
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]


def listed(reasoning: str) -> list[str]:
    """The simplest reader: every line of a list (`- ...`, `* ...`, `1. ...`) is a statement."""
    return re.findall(r"^\s*(?:[-*]|\d+[.)])\s+(.+?)\s*$", reasoning, re.MULTILINE)


def normal(statement: str) -> str:
    """Statements that differ in case, spaces or a final stop are one."""
    return " ".join(statement.lower().split()).rstrip(".")


def checked(statements: Sequence[str], checker: Callable[[str], Checker | None]) -> list[tuple[str, Checker]]:
    """Rules for `rule_fraction`: each statement with the function that verifies it; those nobody can verify are left out."""
    found = [(s, checker(s)) for s in statements]
    return [(s, check) for s, check in found if check is not None]


# The share of explicit rules that an answer keeps.

Rule = str | tuple[str, Callable[[Prompt, str], Any]]  # a registered reward, or (name, checker)


@reward(title="AutoRule", paper="arXiv:2506.15651")
def rule_fraction(prompt: Prompt, text: str, rules: Sequence[Rule] = ("format", "length")) -> float:
    """AutoRule: ask of each explicit rule whether the answer keeps it, yes or no, and average.

    r = 1/|R| sum_j v_j(x, y), v in {0, 1};  a registered reward is kept where it gives 1, a checker where it says true
    Rules come from reasoning about preferences: `extract_rules`.
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


# ---- the method

autorule = method(
    grpo.but(
        name="autorule", title="AutoRule", paper="arXiv:2506.15651", doc=__doc__,
        shaping=(kl_in_reward.but(coef=0.01),), terms=(),
    )
)  # fmt: skip
