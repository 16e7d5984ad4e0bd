"""Calls of tools over HTTP: which form a model writes them in, what it can be held to, and calls as an answer streams.

Three forms are understood (`posttrain/tools/calls.py`: hermes, llama, mistral); a model whose chat template teaches none of them is told of
the first in words.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from posttrain.core.thinking import CLOSE, OPEN
from posttrain.serving.detokenize import stable_text
from posttrain.serving.limits import ApiError, shown
from posttrain.tools import calls
from posttrain.tools.calls import PYTHON_TAG, Parameters, end_of_call, parse
from posttrain.tools.repair import ends_inside, first_object

DEFINITIONS = ("$defs", "definitions")  # where a JSON schema keeps schemas that it refers to


@dataclass(frozen=True)
class ToolFormat:
    """How a model writes a call: between two tags, behind one, or (without tags) as its whole answer."""

    name: str  # as `posttrain.tools.calls` knows it
    open: str
    close: str
    arguments: str  # the name of the field that holds them
    held: tuple[str, str]  # what stands around the JSON of a call that is required


HERMES = ToolFormat("hermes", *calls.HERMES, "arguments", (f"{calls.HERMES[0]}\n", f"\n{calls.HERMES[1]}"))
LLAMA = ToolFormat("llama", "", "", "parameters", ("", ""))
MISTRAL = ToolFormat("mistral", calls.MISTRAL, "", "arguments", (f"{calls.MISTRAL} [", "]"))
FORMS = {form.name: form for form in (HERMES, LLAMA, MISTRAL)}


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
    """Splits an answer into text and calls as it comes; what is a call and what it says, `posttrain.tools.calls` reads. Text that may become a
    call, and space around calls, is held back. What cannot be read as a call of one of the tools stays text."""

    def __init__(self, form: ToolFormat, tools: Parameters, lead: str = "", parallel: bool = True) -> None:
        self.form, self.tools, self.parallel = form, tools, parallel
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
        said, calls = ("", []) if self.thinks else self._split(text, done)
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

    def _split(self, text: str, done: bool) -> tuple[str, list[Call]]:
        said, found = self.space, list[Call]()
        while True:
            start = self._begin(text, done)
            said += text[self.at : start]
            self.at = start
            end = self._end(text, done)
            if end <= start:  # there is no call, or nobody knows yet where it ends
                return said, found
            made = self._calls(text[start:end], done)[: None if self.parallel else int(not (found or self.any))]
            said = said.rstrip() if made else said + text[start:end]
            found += made
            self.at = end

    def _begin(self, text: str, done: bool) -> int:
        """Where the next call may begin; else where the text ends that no call can begin in."""
        if self.form.open:
            start = text.find(self.form.open, self.at)
            return (
                start
                if start >= 0
                else len(text)
                if done
                else self.at + len(stable_text(text[self.at :], [self.form.open]))
            )
        begin = text[self.start :].lstrip()
        held = self.at == self.start and (
            not begin or begin[0] == "{" or PYTHON_TAG.startswith(begin[: len(PYTHON_TAG)])
        )
        return self.at if held else len(text)

    def _end(self, text: str, done: bool) -> int:
        """Where the call ends that begins here: behind its closing tag, or (without one) at the end of the answer; -1: not known yet."""
        if not self.form.close:
            return len(text) if done else -1
        if not text.startswith(self.form.open, self.at):
            return -1
        body = self.at + len(self.form.open)
        end = end_of_call(text, body, self.form.close, self.form.name)
        if not done and end >= 0 and first_object(text, body) < 0 and ends_inside(text[body:end]):
            return -1  # the tag may stand in one of the call's texts
        return end + len(self.form.close) if end >= 0 else len(text) if done else -1

    def _calls(self, piece: str, done: bool) -> list[Call]:
        """The calls of a piece, each of a known tool; none where some cannot be read. A tag that is missing at the very end is no fault."""
        whole = piece if not done or piece.endswith(self.form.close) else piece + self.form.close
        read = parse(whole, self.tools, self.form.name)
        if read.faults or not all(c.name in self.tools for c in read.calls):
            return []
        return [
            Call(f"call_{uuid.uuid4().hex[:24]}", c.name, json.dumps(c.arguments, ensure_ascii=False))
            for c in read.calls
        ]
