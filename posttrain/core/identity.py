"""What an object given in Python is, in a word and a hash: the same call goes on with its run, another one is told apart."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import Tensor

from posttrain.core.adopt import Adopted
from posttrain.core.protocols import Environment

_DEEP = 8  # a thing in a thing in a thing: deeper ones count by their class


def identity(x: Any) -> str:
    """`polite 3f2a91c07d`: its name, and a hash of a function's code and what it closes over, of rows, of an object's class and
    public attributes. What an attribute with a leading underscore holds is state, and does not count."""
    x = x.inner if isinstance(x, Adopted) else x
    named = getattr(x, "__qualname__", "") or getattr(x, "name", "")
    name = named if isinstance(named, str) and named else type(x).__name__
    return f"{name} {_short(repr(told(x)))}"


def told(x: Any, deep: int = 0) -> Any:
    """The object as nested tuples of plain values, whose repr is the same in every process."""
    if x is None or isinstance(x, bool | int | float | complex | str | bytes):
        return x
    if deep > _DEEP:
        return _class_name(x)
    say = functools.partial(told, deep=deep + 1)
    if isinstance(x, Mapping):
        return ("map", *((repr(say(k)), say(v)) for k, v in x.items()))
    if isinstance(x, list | tuple):
        return ("list", *map(say, x))
    if isinstance(x, set | frozenset):
        return ("set", *sorted(repr(say(v)) for v in x))
    if isinstance(x, Tensor):
        return ("tensor", str(x.dtype), tuple(x.shape), _short(repr(x.detach().cpu().tolist())))
    if isinstance(x, functools.partial):
        return ("partial", say(x.func), say(x.args), say(x.keywords))
    if isinstance(x, MethodType):
        return ("method", say(x.__func__), say(x.__self__))
    if isinstance(x, FunctionType):
        return _function(x, say)
    if isinstance(x, type):
        return ("class", x.__module__, x.__qualname__, *_code_of_class(x))
    return _object(x, say, deep)


def _function(f: FunctionType, say: Any) -> tuple[Any, ...]:
    cells = inspect.getclosurevars(f).nonlocals
    return ("function", f.__qualname__, _code(f.__code__), say(f.__defaults__), say(f.__kwdefaults__), say(cells))


def _object(x: Any, say: Any, deep: int) -> tuple[Any, ...]:
    """Class and public attributes; inside another object, of the package's own tools and of libraries the class alone."""
    if dataclasses.is_dataclass(x):
        values = {f.name: getattr(x, f.name, None) for f in dataclasses.fields(x) if f.compare}
    elif deep == 0 or isinstance(x, Environment) or _yours(type(x)):
        values = vars(x) if hasattr(x, "__dict__") else {}
    else:
        values = {}
    public = [(k, say(v)) for k, v in values.items() if not k.startswith("_")]
    return ("object", _class_name(x), *_code_of_class(type(x)), *public)


def _code_of_class(kind: type) -> tuple[Any, ...]:
    """The methods of a class that is not the package's own: those may change in a new version, and a run goes on."""
    if not _yours(kind):
        return ()
    return tuple((k, _code(f.__code__)) for k, f in vars(kind).items() if isinstance(f, FunctionType))


def _yours(kind: type) -> bool:
    top = kind.__module__.split(".")[0]
    return top not in ("posttrain", "torch", "numpy", "transformers") and top not in sys.stdlib_module_names - {
        "__main__"
    }


def _code(code: CodeType) -> str:
    """What a function does, whatever file and line it stands in; comments do not count."""
    constants = [_code(c) if isinstance(c, CodeType) else repr(told(c)) for c in code.co_consts]
    return _short(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)))


def code_hash(code: CodeType) -> str:
    """The same of a whole compiled file."""
    return _code(code)


def _class_name(x: Any) -> str:
    return f"{type(x).__module__}.{type(x).__qualname__}"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]
