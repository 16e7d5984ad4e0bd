"""Tests of a grader: gold answers must get full marks, corrupted ones must not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from posttrain.core.prompt import Prompt
from posttrain.core.registry import Part

Case = tuple[Prompt, str, str]  # a prompt, a text that must score `full`, a text that must score less


def problems(rule: Callable[[Prompt, str], float], cases: Iterable[Case], full: float = 1.0) -> list[str]:
    """A sentence for each gold text that does not score `full` and each corrupted one that does; [] when fine."""
    found = []
    for prompt, gold, corrupted in cases:
        if (got := rule(prompt, gold)) != full:
            found.append(f"{prompt.id}: gold {gold!r} scores {got}, expected {full}")
        if (got := rule(prompt, corrupted)) >= full:
            found.append(f"{prompt.id}: corrupted {corrupted!r} scores {got}, expected less than {full}")
    return found


def check_ready(reward: Any) -> None:
    """Let a rule's module refuse, with a UserError, what could never work: a bad pattern, a package that is missing."""
    if isinstance(reward, Part):
        ready = getattr(sys.modules.get(reward.fn.__module__), "ready", None)
        if ready is not None:
            ready(**reward.defaults())
