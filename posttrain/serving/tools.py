"""Calls of tools: how a model writes them, read from its chat template, and how they are found in what it says.

Two forms are understood, and a model whose chat template teaches neither is told of the first in words: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes, Qwen), any number of them among text,
and one JSON object `{"name": ..., "parameters": {...}}` as the whole answer (Llama 3). What does not parse stays text.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.core.thinking import CLOSE, OPEN
from posttrain.serving.detokenize import stable_text
from posttrain.serving.limits import ApiError, shown

DEFINITIONS = ("$defs", "definitions")  # where a JSON schema keeps schemas that it refers to
PYTHON_TAG = "<|python_tag|>"  # Llama 3 may write it before a call


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes a call: between two tags, or (without tags) as its whole answer."""

    open: str
    close: str
    arguments: str  # the name of the field that holds them


HERMES = ToolFormat("<tool_call>", "</tool_call>", "arguments")
LLAMA = ToolFormat("", "", "parameters")


@dataclass(frozen=True)
class Call:
    """A call that a model has made."""

    id: str
    name: str
    arguments: str  # JSON

    def body(self) -> dict[str, Any]:
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def forced_call(tools: Sequence[dict[str, Any]], name: str, form: ToolFormat) -> dict[str, Any]:
    """The JSON schema of a call of one of the tools, or of the one named; definitions that theirs refer to come along."""
    choices, definitions = [], dict[str, dict[str, Any]]()
    for function in (t["function"] for t in tools if name in ("", t["function"]["name"])):
        check_references(function["parameters"], function["name"])
        schema = dict(function["parameters"])
        for word in DEFINITIONS:
            found = schema.pop(word, None) or {}
            if not isinstance(found, dict):
                told = f"{word} of the tool {function['name']} is {shown(found)}; expected an object of schemas"
                raise ApiError(400, told, "tools", "unsupported_schema")
            for key, value in found.items():
                if definitions.setdefault(word, {}).setdefault(key, value) != value:
                    raise ApiError(400, f"two tools define {key!r} in different ways; rename one", "tools")
        fields = {"name": {"const": function["name"]}, form.arguments: schema}
        choices.append({"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False})
    return {"anyOf": choices, **definitions}


def check_references(schema: Any, name: str) -> None:
    """A reference to the whole of a tool's parameters, or to a place among its properties, would mean another place in the schema
    of the call."""
    known, todo = tuple(f"#/{word}/" for word in DEFINITIONS), [schema]
    while todo:
        one = todo.pop()
        todo += one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        target = one.get("$ref") if isinstance(one, dict) else None
        if isinstance(target, str) and target.startswith("#") and not target.startswith(known):
            told = f"the tool {name} refers to {shown(target)}; put what it refers to under $defs, which is understood"
            raise ApiError(400, told, "tools", "unsupported_schema")


class ToolParser:
    """Splits an answer into text and calls as it comes; text that may become a call, and space around calls, is held back."""

    def __init__(self, form: ToolFormat, names: Collection[str], lead: str = "") -> None:
        self.form, self.names = form, names
        self.thinks = OPEN in lead and CLOSE not in lead  # a call inside a thought is no call
        self.begun = bool(lead)  # how the answer begins is known
        self.at = 0  # characters that are dealt with
        self.start = 0  # where the answer begins: behind its thought
        self.space = ""  # the white space after the text so far: shown if more text follows, left out before a call
        self.any = False  # a call has been found

    def feed(self, text: str, done: bool) -> tuple[str, list[Call]]:
        """The new text and the new calls in an answer of which `text` is all that is known."""
        begin = text.lstrip()
        if not self.begun and not done and len(begin) < len(OPEN) and OPEN.startswith(begin):
            return "", []
        self.thinks, self.begun = self.thinks or (not self.begun and begin.startswith(OPEN)), True
        thought = self._thought(text)
        said, calls = ("", []) if self.thinks else (self._tagged if self.form.open else self._whole)(text, done)
        said = thought + said
        self.any = self.any or bool(calls)
        kept = said if done and not self.any else said.rstrip()  # an answer without calls is left as it is
        self.space = said[len(kept) :]
        return kept, calls

    def _thought(self, text: str) -> str:
        """What is new in the thought, up to its end."""
        if not self.thinks:
            return ""
        end = text.find(CLOSE)
        past = len(text) if end < 0 else end + len(CLOSE)
        said, self.thinks = self.space + text[self.at : past], end < 0
        self.at = self.start = past
        self.space = ""
        return said

    def _tagged(self, text: str, done: bool) -> tuple[str, list[Call]]:
        said, calls = self.space, list[Call]()
        while True:
            start = text.find(self.form.open, self.at)
            if start < 0:
                rest = text[self.at :] if done else stable_text(text[self.at :], [self.form.open])
                self.at += len(rest)
                return said + rest, calls
            said += text[self.at : start]
            self.at = start
            end = text.find(self.form.close, start)
            if end < 0 and not done:
                return said, calls
            call = self._parse(text[start + len(self.form.open) : end if end >= 0 else None])
            self.at = end + len(self.form.close) if end >= 0 else len(text)
            if call is None:
                said += text[start : self.at]
            else:
                said = said.rstrip()
                calls.append(call)

    def _whole(self, text: str, done: bool) -> tuple[str, list[Call]]:
        begin = text[self.start :].lstrip()
        if (
            not done
            and self.at == self.start
            and (not begin or begin[0] == "{" or PYTHON_TAG.startswith(begin[: len(PYTHON_TAG)]))
        ):
            return "", []
        call = self._parse(begin.removeprefix(PYTHON_TAG)) if self.at == self.start else None
        said, self.at = ("" if call else self.space + text[self.at :]), len(text)
        return said, [call] if call else []

    def _parse(self, text: str) -> Call | None:
        try:
            found = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.get("name") not in self.names:
            return None
        arguments = found.get("arguments", found.get("parameters", {}))
        if not isinstance(arguments, dict):
            return None
        return Call(f"call_{uuid.uuid4().hex[:24]}", found["name"], json.dumps(arguments, ensure_ascii=False))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
