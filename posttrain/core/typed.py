"""Values checked against their annotations: every setting and every parameter of a part, so that a new one is checked for free.

    int        a whole number that fits into 64 bits, never a bool        float    any finite number
    bool, str  as they are; text must be storable as UTF-8                None     only where the annotation allows it
    tuple[float, float], Sequence[float], dict[str, float]                each item in turn
An annotation of any other kind (a policy, a function) is not checked here.
"""

from __future__ import annotations

import collections.abc
import inspect
import math
import sys
import types
import typing
from collections.abc import Callable
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from posttrain.core.errors import UserError

_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "text", type(None): "None"}
_MANY = (list, collections.abc.Sequence, collections.abc.Iterable)
_HINTS: dict[type, dict[str, Any]] = {}
_LONGEST = 20_000  # characters of a text


def checked(label: str, value: Any, hint: Any) -> Any:
    """The value, a numpy number as a plain one; a UserError that names `label` where it is not what the hint says."""
    if fits(value, hint):
        return _plain(value)
    why = _odd_number(value) or _odd_text(value)
    raise UserError(f"{label} is {shown(value)}; expected {words(hint)}{why}")


def check_fields(config: Any, where: str = "") -> None:
    """Every field of a frozen dataclass against its annotation."""
    hints: dict[str, Any] = hints_of(type(config))
    for field in fields(config):
        value = getattr(config, field.name)
        plain = checked(f"{where}{field.name}", value, hints[field.name])
        if plain is not value:
            object.__setattr__(config, field.name, plain)


def hints_of(kind: type) -> dict[str, Any]:
    """field -> annotation of a class, resolved once."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def parameter_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """name -> annotation of each parameter that has a default; Any where it cannot be resolved."""
    code = getattr(fn, "__wrapped__", fn)
    space = vars(sys.modules[code.__module__]) if getattr(code, "__module__", None) in sys.modules else {}
    signature = inspect.signature(fn).parameters.items()
    return {n: _resolved(p.annotation, space) for n, p in signature if p.default is not p.empty}


def _resolved(annotation: Any, space: dict[str, Any]) -> Any:
    if annotation is inspect.Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(space))  # the code's own annotation, as typing.get_type_hints reads it
    except Exception:  # a name that is only imported for type checkers
        return Any


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says."""
    if hint is Any:
        return True
    if hint in (None, type(None)):
        return value is None
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return any(fits(value, kind) for kind in typing.get_args(hint))
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool) and abs(int(value)) < 2**63
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and _is_finite(value)
    if hint is str:
        return isinstance(value, str) and not _odd_text(value)
    if typing.get_origin(hint) is typing.Literal:
        return value in typing.get_args(hint)
    return _fits_many(value, hint)


def _fits_many(value: Any, hint: Any) -> bool:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, tuple | list):
        kinds = [inside[0]] * len(value) if inside[1:] == (...,) else list(inside)
        return len(kinds) == len(value) and all(map(fits, value, kinds))
    if origin in _MANY and isinstance(value, tuple | list):
        return all(fits(x, inside[0]) for x in value)
    if origin in (dict, collections.abc.Mapping) and isinstance(value, dict):
        return all(fits(k, inside[0]) and fits(x, inside[1]) for k, x in value.items())
    if origin is tuple or origin in (dict, *_MANY):
        return isinstance(value, collections.abc.Iterable) and not isinstance(value, str | bytes | dict | tuple | list)
    literal = value is None or isinstance(value, bool | int | float | str | tuple | list | dict)
    return not literal or not (isinstance(hint, type) or origin is collections.abc.Callable)


def words(hint: Any) -> str:
    """An annotation for people: `int | None` is "a whole number or None"."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return " or ".join(words(kind) for kind in typing.get_args(hint))
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(repr, inside))
    if origin is tuple and inside[1:] != (...,):
        return f"({', '.join(words(kind) for kind in inside)})"
    if origin is tuple or origin in _MANY:
        return f"a list, each {words(inside[0])}"
    return _WORDS.get(hint) or str(getattr(hint, "__name__", hint))


def shown(value: Any, most: int = 60) -> str:
    """A value in a sentence: cut where it is long, and never an error of its own."""
    try:
        text = repr(value)
    except Exception as error:  # an int of 5,000 digits, an object whose repr raises
        text = f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(float(value))
    except (OverflowError, ValueError):
        return False


def _plain(value: Any) -> Any:
    """numpy's and torch's scalars as Python's own, which JSON can hold; everything else as it is."""
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _odd_number(value: Any) -> str:
    if isinstance(value, Real) and not isinstance(value, bool | Integral) and not _is_finite(value):
        return ", and a finite one"
    return ", below 2^63" if isinstance(value, Integral) and abs(int(value)) >= 2**63 else ""


def _odd_text(value: Any) -> str:
    if not isinstance(value, str):
        return ""
    if len(value) > _LONGEST:
        return f" of at most {_LONGEST:,} characters, not {len(value):,}"
    if "\0" in value:
        return " without NUL characters"
    try:
        value.encode()
    except UnicodeEncodeError:
        return " that can be written as UTF-8"
    return ""
