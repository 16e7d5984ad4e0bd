"""One call as JSON: read strictly or with one repair, and what is wrong where that is not enough."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from posttrain.tools.repair import Repaired, loads, repaired_json

_BESIDE = {"name", "type", "id"}  # keys that a call may have beside its arguments


@dataclass(frozen=True)
class Call:
    """A call that a model wrote; repaired: its text was not quite what the format asks for; id: what the model calls it."""

    name: str
    arguments: dict[str, Any]
    repaired: bool = False
    id: str = field(default="", compare=False)


def read(text: str) -> Repaired:
    """JSON, strictly or with one repair; a ValueError says what is wrong."""
    try:
        return loads(text), False
    except ValueError as error:
        mended = repaired_json(text)
        if mended is None:
            raise ValueError(str(error)) from None
        return loads(mended), True


def json_call(text: str, key: str, bare: Collection[str] = ()) -> Call | str:
    """A call of {"name": ..., key: {...}}, or what is wrong with it; `bare`: tools that take no arguments."""
    form = f'{{"name": "...", "{key}": {{...}}}}'
    try:
        made, repaired = read(text)
    except ValueError as error:
        return f"the call is not JSON ({error}); write {form}"
    return call_of(made, key, repaired, bare)


def call_of(made: Any, key: str, repaired: bool, bare: Collection[str] = ()) -> Call | str:
    """The same of what the JSON says."""
    form = f'{{"name": "...", "{key}": {{...}}}}'
    if not isinstance(made, dict) or not isinstance(made.get("name"), str) or not made["name"]:
        return f"the call has no name; write {form}"
    name = made["name"]
    keys = [k for k in ("arguments", "parameters") if k in made]
    other = [k for k in made if k not in _BESIDE and k not in keys]
    if not keys and not other and name in bare:
        return Call(name, {}, True, str(made.get("id") or ""))
    if len(keys) != 1 or other:
        told = f"{', '.join(map(repr, other))[:80]} beside its arguments" if other else f"no {key}" if not keys else "two sets of arguments"  # fmt: skip
        return f"the call of {name[:60]} has {told}; write {form}"
    arguments = made[keys[0]]
    if isinstance(arguments, str):  # as OpenAI's API writes them
        with suppress(ValueError):
            arguments, repaired = loads(arguments), True
    if not isinstance(arguments, dict):
        return f"the {keys[0]} of {name[:60]} are no JSON object; write {form}"
    return Call(name, arguments, repaired or keys[0] != key, str(made.get("id") or ""))


def list_of(text: str, mark: str, bare: Collection[str] = ()) -> list[Call | str]:
    """The calls of a JSON list, or of one object; `mark` stands before them."""
    try:
        made, repaired = read(text)
    except ValueError as error:
        return [f'what follows {mark} is not JSON ({error}); write [{{"name": "...", "arguments": {{...}}}}]']
    ones = made if isinstance(made, list) else [made]
    return [call_of(one, "arguments", repaired, bare) for one in ones] or [f"the list after {mark} has no call in it"]


def arguments_of(name: str, text: str, id: str | None = None) -> Call | str:
    """A call whose name stands before its arguments."""
    try:
        made, repaired = read(text)
    except ValueError as error:
        return f"the arguments of {name[:60]} are not JSON ({error}); write {{...}}"
    return (
        Call(name, made, repaired, id or "")
        if isinstance(made, dict)
        else f"the arguments of {name[:60]} are no JSON object"
    )
