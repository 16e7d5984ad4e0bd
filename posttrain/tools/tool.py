"""A tool: a plain Python function with type hints, its schema read from the signature, called with what a model wrote.

    def weather(city: str, days: int = 1) -> str:
        '''The weather of a city.

        city: its English name
        days: how many days ahead, 0 for today
        '''

Whatever goes wrong (an argument that is missing or of another type, an exception, time that is up) comes back as a text that the
model can read, and never ends an episode.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from posttrain.core.errors import UserError, nearest
from posttrain.core.python_file import import_file

_NAMES: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_LINE = re.compile(r"^\s*(?P<name>\w+)\s*(?:\([^)]*\))?:\s*(?P<text>\S.*)$", re.MULTILINE)


class ToolError(Exception):
    """What a tool could not do, in words for the model."""


@dataclass(frozen=True)
class Tool:
    """A function that a model may call. `seconds` and `output` (characters) bound one call."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of an object
    function: Callable[..., Any]
    seconds: float = 10.0
    output: int = 4000
    ends: bool = False  # a call that succeeds ends the episode, and its result is the answer

    @property
    def schema(self) -> dict[str, Any]:
        """As chat templates and OpenAI's API take it."""
        return {"type": "function", "function": {"name": self.name, "description": self.description, "parameters": self.parameters}}  # fmt: skip

    def __call__(self, arguments: Mapping[str, Any] | str) -> str:
        """The observation: what the function returned as text, or `error: ...`; never an exception, never more than `output`."""
        try:
            given = checked(self, arguments)
        except ToolError as error:
            return f"error: {error}"
        return self.bounded(self.called(given))

    def called(self, given: dict[str, Any]) -> str:
        """The result in words; the thread of a call that is late is left behind."""
        result: list[str] = []
        thread = threading.Thread(target=lambda: result.append(self.attempt(given)), daemon=True)
        thread.start()
        thread.join(self.seconds)
        return result[0] if result else self.late(self.seconds)

    def attempt(self, given: dict[str, Any]) -> str:
        """The result in words, in this thread and for as long as it takes; a coroutine is run to its end."""
        try:
            value = self.function(**given)
            return text_of(asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value)
        except ToolError as error:
            return f"error: {error}"
        except BaseException as error:
            return f"error: {type(error).__name__}: {error}"

    def late(self, seconds: float) -> str:
        return f"error: {self.name} gave no result within {seconds:.3g} s"

    def bounded(self, text: str) -> str:
        """At most `output` characters of a result."""
        return cut(text, self.output)


async def _awaited(value: Any) -> Any:
    return await value


def tool(
    function: Callable[..., Any], name: str = "", seconds: float = 10.0, output: int = 4000, ends: bool = False
) -> Tool:
    """The tool that a function is; a UserError says what of its signature a model could not fill in. ends: a call that succeeds ends
    the episode, and its result is the answer."""
    name = name or getattr(function, "__name__", "")
    doc = inspect.cleandoc(function.__doc__ or "")
    if not doc:
        raise UserError(f"the tool {name} has no docstring; say in one what it does: the model reads it")
    told = {m["name"]: m["text"] for m in _LINE.finditer(doc)}
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    for key, one in inspect.signature(function).parameters.items():
        if one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD, one.POSITIONAL_ONLY):
            raise UserError(
                f"the tool {name} takes {one}; name its arguments one by one, since a model gives them by name"
            )
        if key not in hints:
            raise UserError(f"the argument {key} of the tool {name} has no type; write `{key}: str`")
        properties[key] = {
            **json_type(hints[key], f"{key} of {name}"),
            **({"description": told[key]} if key in told else {}),
        }
        if one.default is one.empty:
            required.append(key)
        else:
            properties[key]["default"] = one.default
    parameters = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return Tool(name, doc.split("\n\n")[0].replace("\n", " "), parameters, function, seconds, output, ends)


def json_type(hint: Any, where: str) -> dict[str, Any]:
    """A type hint as JSON schema."""
    if hint in _NAMES:
        return {"type": _NAMES[hint]}
    origin, inside = get_origin(hint), get_args(hint)
    if origin is Literal:
        return {"enum": list(inside)}
    if hint is list or origin is list:
        return {"type": "array", **({"items": json_type(inside[0], where)} if inside else {})}
    if hint is dict or origin is dict:
        return {"type": "object"}
    if origin in (Union, types.UnionType) and type(None) in inside and len(inside) == 2:
        return json_type(next(x for x in inside if x is not type(None)), where)
    raise UserError(
        f"the argument {where} is a {hint}; a tool takes str, int, float, bool, list, dict, Literal[...] or X | None"
    )


def checked(of: Tool, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
    """What a model wrote as arguments of the function; a ToolError tells the model what is wrong."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments of {of.name} are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ToolError(f"the arguments of {of.name} are an object, got {arguments!r:.80}")
    known, needed = of.parameters["properties"], of.parameters["required"]
    for name in arguments:
        if name not in known:
            close = nearest(str(name), known)
            hint = f"did you mean {close!r}?" if close else f"it takes: {', '.join(known) or 'nothing'}"
            raise ToolError(f"{of.name} has no argument {str(name)[:60]!r}; {hint}")
    if missing := [n for n in needed if n not in arguments]:
        raise ToolError(f"{of.name} needs {' and '.join(missing)}")
    return {name: fitting(value, known[name], f"{name} of {of.name}") for name, value in arguments.items()}


def fitting(value: Any, schema: Mapping[str, Any], where: str) -> Any:
    """The value, if it is of the type; a whole float is an integer, an integer is a number."""
    if "enum" in schema:
        if value not in schema["enum"]:
            raise ToolError(f"{where} is one of {', '.join(map(repr, schema['enum']))}, got {value!r:.60}")
        return value
    kind = schema.get("type")
    if kind not in ("string", "integer", "number", "boolean", "array", "object"):
        return value  # a server's schema may say what is not checked here: it checks itself
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    right: Any = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "array": list,
        "object": dict,
    }[kind]
    if not isinstance(value, right) or (isinstance(value, bool) and kind in ("integer", "number")):
        raise ToolError(f"{where} is of type {kind}, got {value!r:.60}")
    return (
        [fitting(x, schema["items"], f"an entry of {where}") for x in value]
        if kind == "array" and "items" in schema
        else value
    )


def text_of(value: Any) -> str:
    """A result as a model reads it: a text as it is, other data as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def cut(text: str, most: int) -> str:
    """The text, or its beginning and how much is missing."""
    return text if len(text) <= most else f"{text[:most]}\n... {len(text) - most} more characters were left out"


def tools_in(file: str) -> list[Tool]:
    """The tools that a Python file gives: its own public functions, and Tool objects that it makes, one by one or in lists."""
    module = import_file(file, file)
    found: dict[str, Tool] = {}
    for name, thing in vars(module).items():
        if isinstance(thing, Tool):
            some = [thing]
        elif isinstance(thing, list | tuple) and thing and all(isinstance(x, Tool) for x in thing):
            some = list(thing)  # of a server: posttrain.tools.mcp
        elif inspect.isfunction(thing) and thing.__module__ == module.__name__ and not name.startswith("_"):
            some = [tool(thing)]
        else:
            continue
        for made in some:
            if made.name in found:
                raise UserError(f"{file} has two tools named {made.name!r}; a model can call one of them only")
            found[made.name] = made
    if not found:
        raise UserError(f"{Path(file).name} gives no tools; write a function with type hints and a docstring")
    return list(found.values())
