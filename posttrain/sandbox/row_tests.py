"""The tests that come with a programming problem, in the forms that data sets have them.

`tests`, `test_list`            assert statements (MBPP), or {"input", "output"} of stdin and stdout, or {"args", "expected"} of a function
`test` with `entry_point`       a function check(candidate) (HumanEval)
`input_output`                  {"inputs", "outputs"}, as JSON or as an object; with "fn_name" the arguments of a function (APPS, TACO)
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_FORMS = ("tests", "test_list", "input_output")


@dataclass(frozen=True)
class Call:
    """A call of a function and the value that it shall return; the value is never sent to the program."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    expected: Any


@dataclass(frozen=True)
class Script:
    """Test code that is more than one call; it is run in a sandbox of its own."""

    source: str


@dataclass(frozen=True)
class Exchange:
    """What the program reads, and what it shall print."""

    stdin: str
    stdout: str


@dataclass(frozen=True)
class Tests:
    """The tests of one problem, and what is run before those that are scripts."""

    each: list[Call | Script | Exchange]
    setup: str = ""
    entry: str = ""  # the function that is asked for, where the row says so
    fields: dict[str, Any] = field(default_factory=dict)


def has_tests(info: Mapping[str, Any]) -> bool:
    """Whether a row comes with tests."""
    return any(info.get(name) for name in _FORMS) or bool(info.get("test") and info.get("entry_point"))


def read_tests(info: Mapping[str, Any]) -> Tests:
    """The tests of a row; ValueError says what is wrong with them."""
    entry = str(info.get("entry_point") or "")
    setup = str(info.get("test_setup_code") or "")
    given: Any = next((info[name] for name in _FORMS if info.get(name)), None)
    if given is None and entry and info.get("test"):
        return Tests([Script(f"{info['test']}\ncheck({entry})")], setup, entry)
    if isinstance(given, str) and given.lstrip().startswith(("[", "{")):
        given = json.loads(given)
    if isinstance(given, Mapping):
        given = _pairs(given)
    if isinstance(given, str):
        given = [f"{given}\ncheck({entry})" if entry and "def check(" in given else given]
    if not isinstance(given, list) or not given:
        raise ValueError(
            f"the row has no tests in a form that is known here: {', '.join(_FORMS)}, or test with entry_point"
        )
    return Tests([_one(test, entry, bool(setup)) for test in given], setup, entry)


def _pairs(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """APPS: lists of inputs and outputs."""
    inputs, outputs, name = given.get("inputs"), given.get("outputs"), given.get("fn_name")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise ValueError("input_output is an object with as many inputs as outputs")
    if name:
        return [{"name": name, "args": i, "expected": o} for i, o in zip(inputs, outputs, strict=True)]
    return [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]


def _one(test: Any, entry: str, setup: bool) -> Call | Script | Exchange:
    if isinstance(test, str):
        found = None if setup else call_of(test)
        return found or Script(test)
    if isinstance(test, Mapping) and "input" in test and "output" in test:
        return Exchange(_text(test["input"]), _text(test["output"]))
    if isinstance(test, Mapping) and "args" in test and "expected" in test and (test.get("name") or entry):
        return Call(
            str(test.get("name") or entry), list(test["args"]), dict(test.get("kwargs") or {}), test["expected"]
        )
    raise ValueError(f"a test is an assert statement, {{input, output}} or {{name, args, expected}}; got {test!r:.80}")


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def call_of(source: str) -> Call | None:
    """`assert f(1, [2]) == 3` as a call; None where it is anything else than one call of plain data compared with plain data."""
    try:
        (statement,) = ast.parse(source.strip()).body
        if not isinstance(statement, ast.Assert) or not isinstance(statement.test, ast.Compare):
            return None
        left, operators, right = statement.test.left, statement.test.ops, statement.test.comparators
        if (
            not isinstance(left, ast.Call)
            or not isinstance(left.func, ast.Name)
            or [type(o) for o in operators] != [ast.Eq]
        ):
            return None
        kwargs = {k.arg: ast.literal_eval(k.value) for k in left.keywords if k.arg}
        if len(kwargs) != len(left.keywords):
            return None
        return Call(left.func.id, [ast.literal_eval(a) for a in left.args], kwargs, ast.literal_eval(right[0]))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
