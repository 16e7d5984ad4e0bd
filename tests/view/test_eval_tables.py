"""Tables of an evaluation show what the data holds, and obey none of it."""

from __future__ import annotations

import io

from rich.console import Console

from posttrain.view.eval_tables import MOST, by_table, span
from posttrain.view.figures import percent


def shown(*cells: tuple[object, ...]) -> str:
    out = io.StringIO()
    by_table(Console(file=out, width=100), ("kind[red]", "n"), cells)
    return out.getvalue()


def test_values_are_text() -> None:
    said = shown(("[bold]x[/bold]", 1), ("a\x1b[31mb\nc", 2))
    assert "[bold]x[/bold]" in said and "kind[red]" in said and "\x1b" not in said and "a\\x1b[31mb\\nc" in said


def test_long_tables_say_what_is_left_out() -> None:
    said = shown(*((i, 1) for i in range(MOST + 3)))
    assert "and 3 more; --json has all of them" in said


def test_an_interval_that_is_not_known_is_a_dash() -> None:
    assert span([float("nan"), float("nan")], percent) == "-" and span([0.0, 0.5], percent) == "0.0% to 50.0%"
