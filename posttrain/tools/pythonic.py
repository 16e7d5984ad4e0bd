"""Calls written as a Python list, `[search(query="Oslo")]`: parsed by `ast`, never run."""

from __future__ import annotations

import ast
import json
from typing import Any

from posttrain.tools.repair import repaired_python

Made = tuple[str, dict[str, Any]] | str  # (name, arguments), or what is wrong


def list_of_calls(text: str) -> tuple[list[Made] | None, bool]:
    """Each call of the list or its fault, and whether the text was mended; None where it is no list."""
    tree, repaired = _python(text), False
    if tree is None:
        mended, repaired = repaired_python(text), True
        tree = _python(mended) if mended else None
    return ([_call(node) for node in tree.elts] if isinstance(tree, ast.List) else None), repaired


def _python(text: str) -> ast.expr | None:
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _call(node: ast.expr) -> Made:
    """A call as parsed; whatever is no literal by name is a fault."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return f"{_shown(node)} is no call; write name(argument=value)"
    name = ast.unparse(node.func)
    if node.args or any(k.arg is None for k in node.keywords):
        return f"the call of {name} has arguments without names; write {name}(argument=value)"
    try:
        return name, {str(k.arg): _literal(k.value) for k in node.keywords}
    except (ValueError, RecursionError):
        return f"an argument of {name} is no plain value; write texts, numbers, lists and dicts as they are"


def _literal(node: ast.expr) -> Any:
    """A literal as JSON has it."""
    value = ast.literal_eval(node)
    if not _plain(value):
        raise ValueError("no JSON value")
    return json.loads(json.dumps(value, allow_nan=False))  # tuples are lists there


def _plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) and _plain(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _shown(node: ast.expr) -> str:
    return repr(ast.unparse(node)[:60])
