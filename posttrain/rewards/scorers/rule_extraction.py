"""Rules from preferences (AutoRule, arXiv:2506.15651): explain each pair, read statements off the reasoning, merge them.

What explains, reads and checks are functions that are given (a language model, a program); what is here is deterministic.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt

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
