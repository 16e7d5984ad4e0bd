"""The answer matches a pattern."""

from __future__ import annotations

import regex as engine  # not re: this engine can be stopped, so a pattern that backtracks for ever hangs no run

from posttrain.core.errors import UserError
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt


@reward(title="Regular expression")
def regex(prompt: Prompt, text: str, pattern: str = r"\S", whole: bool = False, timeout: float = 1.0) -> float:
    """Regular expression: 1 when the pattern is found in the text (whole=True: when it matches all of it).

    r = [pattern matches text]; . matches newlines. A search longer than `timeout` seconds is a failed reward, not a 0.
    """
    find = engine.fullmatch if whole else engine.search
    return float(find(pattern, text, flags=engine.DOTALL, timeout=timeout, concurrent=True) is not None)


def ready(pattern: str = r"\S", **_: object) -> None:
    """Refuse a pattern that cannot be read before a run starts."""
    try:
        engine.compile(pattern)
    except engine.error as error:
        raise UserError(f"the pattern {pattern!r} is not a regular expression: {error}") from None


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("regex", "Write a date.")
    dated = regex.but(pattern=r"\d{4}-\d\d-\d\d", whole=True)
    return problems(dated, [(prompt, "2024-02-29", "on 2024-02-29"), (prompt, "1999-12-31", "1999-12-3")])
