"""Calls of tools: how a model writes them, and how they are read in what it wrote. Pure: nothing here calls anything.

hermes   <tool_call>{"name": "search", "arguments": {"query": "Oslo"}}</tool_call>, any number among text (Hermes, Qwen)
llama    {"name": "search", "parameters": {"query": "Oslo"}} as the whole answer, <|python_tag|> before it or not (Llama 3)
xml      <search>Oslo</search>: the first text argument, or a JSON object of all of them (Search-R1)
python   [search(query="Oslo")] as the whole answer, parsed and never run (Llama 3.2, Llama 4)
mistral  [TOOL_CALLS] [{"name": "search", "arguments": {"query": "Oslo"}}] at the end; also [TOOL_CALLS]search[ARGS]{"query": "Oslo"} (Mistral)
auto     whichever of them the text is written in

A call inside a thought is no call, and a turn that was cut off at its token limit has none. A call is read strictly first, then
with one repair (`tools/repair.py`), and is marked when that was needed. What is still no call, or lost an argument, is a fault: a
sentence for the model to read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.errors import unknown
from posttrain.core.thinking import CLOSE, OPEN
from posttrain.tools.one_call import Call, arguments_of, json_call, list_of, read
from posttrain.tools.pythonic import list_of_calls
from posttrain.tools.repair import ends_inside, first_object

FORMATS = ("hermes", "llama", "xml", "python", "mistral")
HERMES = ("<tool_call>", "</tool_call>")
PYTHON_TAG = "<|python_tag|>"  # Llama 3 may write it before a call
PYTHONIC = ("<|python_start|>", "<|python_end|>")  # Llama 4 may write them around calls
MISTRAL, BESIDE_MISTRAL = "[TOOL_CALLS]", ("[CALL_ID]", "[ARGS]")  # before a list of calls, or before each
_NAMED = re.compile(
    r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w-]*)\s*)?(?:\[ARGS\])?\s*(?=\{)"
)  # of a call that is no JSON object itself
_BARE_JSON = re.compile(r'\{\s*"(?:name|type)"\s*:')
_BARE_LIST = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")

Parameters = Mapping[str, Mapping[str, Any]]  # name of a tool -> JSON schema of its arguments


@dataclass(frozen=True)
class Parsed:
    """What a turn says: the text outside calls, the calls in order, a sentence for each that could not be read.

    unclosed: the turn ended inside a call, which is a fault of its form and not of its content.
    """

    text: str
    calls: tuple[Call, ...] = ()
    faults: tuple[str, ...] = ()
    unclosed: bool = False


@dataclass
class _Found:
    """The same while it is read."""

    text: list[str] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    unclosed: bool = False
    bare: frozenset[str] = frozenset()  # tools without arguments: a call of one may leave them out

    def add(self, made: Call | str) -> None:
        (self.faults if isinstance(made, str) else self.calls).append(made)  # type: ignore[arg-type]


def parse(text: str, tools: Parameters, format: str = "auto", cut: bool = False) -> Parsed:
    """The text outside calls, the calls and the faults of a turn; cut: it ran into its token limit."""
    if format not in (*FORMATS, "auto"):
        raise unknown("format of tool calls", format, (*FORMATS, "auto"))
    begin = _thought_end(text, tools)
    kind = detect(text[begin:], tools) if format == "auto" else format
    if cut or not kind:
        return Parsed(text[: begin + _first_call(text[begin:], kind, tools)] if cut and kind else text)
    found = _Found([text[:begin]], bare=frozenset(n for n, schema in tools.items() if not schema.get("properties")))
    if kind in ("hermes", "xml"):
        _tagged(text, begin, kind, tools, found)
    else:
        {"llama": _whole_json, "python": _whole_list, "mistral": _behind_mark}[kind](text[begin:], found)
    return Parsed("".join(found.text).strip(), tuple(found.calls), tuple(found.faults), found.unclosed)


def detect(text: str, tools: Parameters) -> str:
    """The format that a text (without its thought) has calls in; empty where it has none."""
    begin = text.lstrip()
    if HERMES[0] in text or HERMES[1] in text:
        return "hermes"
    if MISTRAL in text:
        return "mistral"
    if PYTHON_TAG in text or _BARE_JSON.match(begin):
        return "llama"
    if PYTHONIC[0] in text or _BARE_LIST.match(begin):
        return "python"
    return "xml" if any(f"<{name}>" in text for name in tools) else ""


def format_of(template: str | None) -> str:
    """The format that a model's chat template teaches; empty where it teaches none that is read here."""
    if not template:
        return ""
    if HERMES[0] in template and "<function=" not in template:  # which is another form between the same tags
        return "hermes"
    if MISTRAL in template:
        return "mistral"
    if "(params_name1=" in template or PYTHONIC[0] in template:
        return "python"
    if '"parameters"' in template and ("ipython" in template or PYTHON_TAG in template):
        return "llama"
    return ""


# ---- between tags


def _tags(kind: str, tools: Parameters) -> list[tuple[str, str, str]]:
    """(opening tag, closing tag, tool) of a format."""
    return [(*HERMES, "")] if kind == "hermes" else [(f"<{name}>", f"</{name}>", name) for name in tools]


def _first_call(text: str, kind: str, tools: Parameters) -> int:
    """Where the first call begins, or the text ends."""
    if kind in ("llama", "python"):
        return len(text) if not detect(text, tools) else 0
    if kind == "mistral":
        return text.find(MISTRAL) if MISTRAL in text else len(text)
    return min((at for open, _, _ in _tags(kind, tools) if (at := text.find(open)) >= 0), default=len(text))


def _thought_end(text: str, tools: Parameters) -> int:
    """Where a thought that the text begins with ends: behind its closing tag, at the end where it is never closed. A tag inside
    the arguments of a call closes nothing."""
    if text.lstrip().startswith(OPEN):
        past = text.find(CLOSE)
        return len(text) if past < 0 else past + len(CLOSE)
    close = text.find(CLOSE)
    if close < 0 or 0 <= text.find(OPEN) < close:
        return 0
    for begin, end, _ in [*_tags("hermes", tools), *_tags("xml", tools)]:
        start = text.find(begin)
        if 0 <= start < close < text.find(end, start):
            return 0
    start = text.find(MISTRAL)
    if 0 <= start < close:
        named = _NAMED.match(text, start + len(MISTRAL))
        if close < first_object(text, named.end() if named else start + len(MISTRAL), "{["):
            return 0
    return 0 if _BARE_JSON.match(text.lstrip()) or _BARE_LIST.match(text.lstrip()) else close + len(CLOSE)


def _tagged(text: str, at: int, kind: str, tools: Parameters, found: _Found) -> None:
    """Calls between tags, thoughts left out, from a place of the text on."""
    tags = _tags(kind, tools)
    while True:
        heads = [(i, tag) for tag in tags if (i := text.find(tag[0], at)) >= 0]
        start, (open, close, name) = min(heads, default=(len(text), ("", "", "")))
        thought = text.find(OPEN, at, start)
        if thought >= 0:
            end = text.find(CLOSE, thought)
            past = len(text) if end < 0 else end + len(CLOSE)
            found.text.append(text[at:past])
            at = past
            continue
        stray = HERMES[1] if kind == "hermes" else ""
        if stray and stray in text[at:start]:
            found.faults.append(f"there is a {stray} without a {HERMES[0]} before it")
        found.text.append(text[at:start])
        if not open:
            return
        body = start + len(open)
        end = end_of_call(text, body, close, kind)
        if end < 0:
            found.faults.append(f"the call after {open} has no end; close it with {close}")
            found.unclosed = True
            return
        inside = text[body:end]
        found.add(
            json_call(inside, "arguments", found.bare) if kind == "hermes" else _xml_call(name, inside, tools[name])
        )
        at = end + len(close)


def end_of_call(text: str, body: int, close: str, kind: str) -> int:
    """Where the closing tag is: behind the JSON, whose texts may hold such a tag themselves; -1 where there is none."""
    if kind == "hermes" or text[body:].lstrip().startswith("{"):
        past = first_object(text, body)
        if past > 0:
            return text.find(close, past)
    return text.find(close, body)


def _xml_call(name: str, inside: str, schema: Mapping[str, Any]) -> Call | str:
    """The text between <name> and </name> as the first text argument, or as a JSON object of the arguments."""
    known: Mapping[str, Any] = schema.get("properties", {})
    said = inside.strip()
    if said.startswith("{"):
        try:
            given, repaired = read(said)
        except ValueError:
            given, repaired = None, False
        if isinstance(given, dict) and given and set(given) <= set(known):
            return Call(name, given, repaired)
    first = first_text(schema)
    if not said and not known:
        return Call(name, {})
    if not said or not first:
        told = f"as a JSON object, like <{name}>{json.dumps(dict.fromkeys(known, '...'))}</{name}>"
        return f"the call of {name} has no arguments that can be read; write them {told}"
    return Call(name, {first: said})


def first_text(schema: Mapping[str, Any]) -> str:
    """The argument that a plain text between tags is: the first required text, else the first text."""
    known: Mapping[str, Any] = schema.get("properties", {})
    texts = [n for n, p in known.items() if p.get("type") == "string"]
    return next((n for n in texts if n in schema.get("required", ())), texts[0] if texts else "")


# ---- the whole answer


def _whole_json(text: str, found: _Found) -> None:
    """One JSON object, or several with `;` between them; a text before <|python_tag|> stays text."""
    before, tag, rest = text.partition(PYTHON_TAG)
    said = (rest if tag else before).strip()
    if tag:
        found.text.append(before)
    elif not _BARE_JSON.match(said) or not _names_call(said):
        found.text.append(text)
        return
    if not said:
        found.faults.append(f"there is nothing after {PYTHON_TAG}; write a call there")
        return
    for piece in _objects(said):
        made = json_call(piece, "parameters", found.bare)
        found.add(made)
        found.unclosed = found.unclosed or (isinstance(made, str) and ends_inside(piece))


def _names_call(said: str) -> bool:
    """Whether a JSON text has what a call has: a name and arguments; an answer may be JSON too."""
    return bool(re.search(r'"name"\s*:', said) and re.search(r'"(?:parameters|arguments)"\s*:', said))


def _objects(text: str) -> Iterator[str]:
    """The JSON objects of a text one by one; from the first that cannot be read on, the rest."""
    while text:
        past = first_object(text, 0)
        if past < 0:
            yield text
            return
        yield text[:past]
        text = text[past:].lstrip().removeprefix(";").lstrip()


def _whole_list(text: str, found: _Found) -> None:
    """A Python list of calls with literals by name."""
    open, close = PYTHONIC
    said = text.strip().removeprefix(open).removesuffix(close).strip()
    if not _BARE_LIST.match(said):
        found.text.append(text)
        return
    made, repaired = list_of_calls(said)
    if made is None:
        found.unclosed = ends_inside(said, python=True)
        found.faults.append("the calls are not a list of Python calls; write [name(argument=value)]")
        return
    for one in made:
        found.add(one if isinstance(one, str) else Call(*one, repaired))


# ---- behind a mark


def _behind_mark(text: str, found: _Found) -> None:
    """A text, and behind each [TOOL_CALLS] a JSON list of calls, one JSON object, or a name with the JSON of its arguments."""
    at = 0
    while (start := text.find(MISTRAL, at)) >= 0:
        found.text.append(text[at:start])
        begin = start + len(MISTRAL)
        named = _NAMED.match(text, begin)
        at = _value_end(text, named.end() if named else begin)
        said = text[named.end() if named else begin : at]
        made = [arguments_of(named[1], said, named[2])] if named else list_of(said, MISTRAL, found.bare)
        for one in made:
            found.add(one)
        found.unclosed = found.unclosed or (any(isinstance(one, str) for one in made) and ends_inside(said))
    found.text.append(text[at:])


def _value_end(text: str, begin: int) -> int:
    """Behind the JSON value that begins here, whose texts may hold the mark themselves; where it is none, at the next mark."""
    past = first_object(text, begin, "{[")
    if past > 0:
        return past
    following = text.find(MISTRAL, begin)
    return len(text) if following < 0 else following
