"""A calculator: expressions are parsed and computed, never run as code."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

from posttrain.tools.tool import ToolError, tool

_BITS = 14_000  # of the largest integer: about 4,200 digits, which Python still writes out
_PLACES = 300  # that a number is rounded to
_LONGEST = 1000  # characters of an expression
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}  # fmt: skip
_FUNCTIONS = {n: getattr(math, n) for n in ("sqrt", "exp", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "floor", "ceil", "gcd", "lcm", "comb", "factorial", "radians", "degrees")}  # fmt: skip
_FUNCTIONS |= {"abs": abs, "round": round, "min": min, "max": max}
_CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}


def calculate(expression: str) -> str:
    """Compute an arithmetic expression such as (3 + 4) * sqrt(2) or 2**10 / 3.

    expression: numbers, + - * / // % **, parentheses, pi, e, and functions such as sqrt, log, sin, round, max, comb
    """
    if len(expression) > _LONGEST:
        raise ToolError(f"the expression has {len(expression)} characters, more than {_LONGEST}")
    try:
        tree = ast.parse(expression.strip().replace("^", "**").replace("×", "*").replace("÷", "/"), mode="eval")
        value = value_of(tree.body)
        return str(value)
    except ZeroDivisionError:
        raise ToolError("division by zero") from None
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        raise ToolError(f"cannot compute {expression!r:.80}: {error}") from None


def value_of(node: ast.expr) -> Any:
    """The value of a parsed expression; what is no arithmetic is a ToolError."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return bounded(node.value)
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = value_of(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = value_of(node.left), value_of(node.right)
        whole = isinstance(node.op, ast.Pow) and isinstance(left, int) and isinstance(right, int)
        if whole and right > 0 and left.bit_length() * right > _BITS:
            raise ToolError("the power is too large")
        return bounded(_BINARY[type(node.op)](left, right))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _FUNCTIONS
        and not node.keywords
    ):
        args = [value_of(a) for a in node.args]
        if node.func.id in ("factorial", "comb") and any(abs(a) > 1500 for a in args):
            raise ToolError(f"{node.func.id} of a number above 1500 is too large")
        if node.func.id == "round" and any(abs(a) > _PLACES for a in args[1:]):  # Python computes that power of ten
            raise ToolError(f"round to at most {_PLACES} places")
        return bounded(_FUNCTIONS[node.func.id](*args))
    raise ToolError(
        f"{ast.unparse(node)[:60]!r} is not arithmetic; it takes numbers, + - * / // % **, and functions such as sqrt"
    )


def bounded(value: Any) -> Any:
    """The value, if it can be written down."""
    if isinstance(value, complex):
        raise ToolError("the result is not a real number")
    if (isinstance(value, int) and value.bit_length() > _BITS) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ToolError("the number is too large")
    return value


calculator = tool(calculate, "calculator", seconds=2.0)
