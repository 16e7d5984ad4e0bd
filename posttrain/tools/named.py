"""Tools as they are typed: `--tools mine.py`, `--tools "calculator + mine.py(format='xml', max_turns=4)"`.

mine.py       the functions and Tool objects of a file of yours
calculator    the one that comes with the package
python        the interpreter in the sandbox
Options say how tools may be used (`environments/tooled.py`) and belong to all of them, wherever they stand.
"""

from __future__ import annotations

from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.registry import parse, split_sum
from posttrain.tools.tool import Tool, tools_in

SHIPPED = ("calculator", "python")
OPTIONS = {"format": "auto", "max_turns": 8, "max_calls": 16, "faults": 2, "seconds": 60.0}


def tools_named(spec: str) -> tuple[list[Tool], dict[str, Any]]:
    """The tools that a spec stands for, and how they may be used."""
    found: list[Tool] = []
    options: dict[str, Any] = {}
    for piece in split_sum(spec):
        name, given = parse(piece) if piece.endswith(")") else (piece, {})
        for key, value in given.items():
            check_option(key)
            if options.setdefault(key, value) != value:
                raise UserError(f"{key} of the tools is {options[key]!r} and {value!r}; say it once")
        found += _tools(name.strip())
    return found, options


def check_option(key: str) -> None:
    if key not in OPTIONS:
        close = nearest(key, OPTIONS)
        hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(OPTIONS)}"
        raise UserError(f"tools have no option {key!r}; {hint}")


def _tools(name: str) -> list[Tool]:
    if name == "calculator":
        from posttrain.tools.calculator import calculator

        return [calculator]
    if name == "python":
        from posttrain.tools.python import python

        return [python()]
    if name.endswith(".py"):
        return tools_in(name)
    close = nearest(name, SHIPPED)
    hint = f"did you mean {close!r}?" if close else f"give a Python file, or {' or '.join(SHIPPED)}"
    raise UserError(f"--tools {name or repr(name)}: no tools are called so; {hint}")


def with_options(spec: str, options: dict[str, Any]) -> str:
    """The spec with more options in it: what `--tools.max-turns 4` adds to `--tools mine.py`."""
    if not options:
        return spec
    inside = ", ".join(f"{k}={v!r}" for k, v in options.items())
    pieces = split_sum(spec)
    last = pieces[-1]
    pieces[-1] = f"{last[:-1]}, {inside})" if last.endswith(")") else f"{last}({inside})"
    return " + ".join(pieces)
