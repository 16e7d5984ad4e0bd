"""Answers as a line of JSON for a worker process, and back: tuples stay tuples, and what JSON cannot hold is refused.

Nothing is pickled: reading a message runs no code.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.core.prompt import Prompt
from posttrain.rewards.runtime.conventions import Answers

_TAG = "\0kind"  # a key that no row has


class Unreadable(Exception):
    """A prompt holds an object that cannot be sent to another process."""


def packed(answers: Answers, ids: bool, timeout: float, workers: int) -> bytes:
    """One question: the answers, and how they are to be scored. A prompt is sent once for all its answers."""
    places = {id(p): i for i, p in reversed(list(enumerate(answers.prompts)))}
    first = sorted(set(places.values()))
    number = {place: i for i, place in enumerate(first)}
    message = {
        "prompts": [_row(answers.prompts[i]) for i in first],
        "which": [number[places[id(p)]] for p in answers.prompts],
        "texts": list(answers.texts),
        "ids": answers.ids() if ids else [],
        "timeout": timeout,
        "workers": workers,
    }
    return json.dumps(message).encode() + b"\n"


def unpacked(line: bytes) -> tuple[Answers, float, int]:
    """The reverse."""
    m = json.loads(line)
    prompts = [Prompt(*map(decoded, row)) for row in m["prompts"]]
    ids = m["ids"]
    return Answers([prompts[i] for i in m["which"]], m["texts"], lambda: [list(r) for r in ids]), m["timeout"], m["workers"]  # fmt: skip


def packed_call(args: Sequence[Any], named: Mapping[str, Any], timeout: float) -> bytes:
    """A call of a plain function: what it is given, by place and by name."""
    told = {"args": [encoded(x) for x in args], "named": {k: encoded(x) for k, x in named.items()}, "timeout": timeout}
    return json.dumps(told).encode() + b"\n"


def unpacked_call(line: bytes) -> tuple[list[Any], dict[str, Any], float]:
    """The reverse."""
    m = json.loads(line)
    return [decoded(x) for x in m["args"]], {k: decoded(x) for k, x in m["named"].items()}, m["timeout"]


def _row(prompt: Prompt) -> list[Any]:
    return [encoded(x) for x in (prompt.id, prompt.content, prompt.answer, prompt.info)]


def encoded(x: Any) -> Any:
    kind = type(x)
    if x is None or kind in (str, int, float, bool):
        return x
    if kind is list:
        return [encoded(v) for v in x]
    if kind is dict and all(type(k) is str and k != _TAG for k in x):
        return {k: encoded(v) for k, v in x.items()}
    if kind is dict:
        return {_TAG: "dict", "of": [[encoded(k), encoded(v)] for k, v in x.items()]}
    if kind in (tuple, set, frozenset):
        return {_TAG: kind.__name__, "of": [encoded(v) for v in x]}
    if kind is Prompt:
        return {_TAG: "prompt", "of": _row(x)}
    if kind is bytes:
        return {_TAG: "bytes", "of": base64.b64encode(x).decode()}
    raise Unreadable(f"they hold a {kind.__module__}.{kind.__qualname__}")


def decoded(x: Any) -> Any:
    if isinstance(x, list):
        return [decoded(v) for v in x]
    if not isinstance(x, dict):
        return x
    if _TAG not in x:
        return {k: decoded(v) for k, v in x.items()}
    if x[_TAG] == "dict":
        return {decoded(k): decoded(v) for k, v in x["of"]}
    if x[_TAG] == "prompt":
        return Prompt(*map(decoded, x["of"]))
    if x[_TAG] == "bytes":
        return base64.b64decode(x["of"])
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[x[_TAG]](map(decoded, x["of"]))
