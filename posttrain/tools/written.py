"""What a model is told of its tools where its chat template has no place for them, and calls as it would write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from posttrain.core.errors import unknown
from posttrain.tools.calls import FORMATS, HERMES, MISTRAL, Parameters, first_text
from posttrain.tools.one_call import Call

_HOW = {
    "hermes": 'To call one, write its name and its arguments as JSON between tags:\n<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}\n</tool_call>',
    "llama": 'To call one, answer with nothing but {"name": "NAME", "parameters": {"ARGUMENT": VALUE}}',
    "xml": "To call one, write its argument between tags with its name, <NAME>ARGUMENT</NAME>; several arguments as a JSON object.",
    "mistral": 'To call one or several, answer with nothing but [TOOL_CALLS] [{"name": "NAME", "arguments": {"ARGUMENT": VALUE}}]',
    "python": "To call one or several, answer with nothing but [NAME(ARGUMENT=VALUE)]",
}  # fmt: skip


def described(schemas: Sequence[Mapping[str, Any]], format: str = "hermes") -> str:
    """The tools and how to call them, for a system message."""
    if format not in FORMATS:
        raise unknown("format of tool calls", format, FORMATS)
    functions = "\n".join(_dumps(schema["function"]) for schema in schemas)
    end = "The result comes back between <tool_response> and </tool_response>. Answer without a call when you know enough."
    return f"You may call tools:\n<tools>\n{functions}\n</tools>\n{_HOW[format]}\n{end}"


def render(calls: Sequence[Call], format: str, tools: Parameters) -> str:
    """Calls as a model would write them: for demonstrations, and for tests that read them back."""
    if format == "hermes":
        return "\n".join(
            f"{HERMES[0]}\n{_dumps({'name': c.name, 'arguments': c.arguments})}\n{HERMES[1]}" for c in calls
        )
    if format == "llama":
        return "; ".join(_dumps({"name": c.name, "parameters": c.arguments}) for c in calls)
    if format == "mistral":
        return f"{MISTRAL} {_dumps([{'name': c.name, 'arguments': c.arguments} for c in calls])}"
    if format == "python":
        return (
            "[" + ", ".join(f"{c.name}({', '.join(f'{k}={v!r}' for k, v in c.arguments.items())})" for c in calls) + "]"
        )
    if format != "xml":
        raise unknown("format of tool calls", format, FORMATS)
    return "\n".join(f"<{c.name}>{_xml_text(c, tools.get(c.name, {}))}</{c.name}>" for c in calls)


def _xml_text(call: Call, schema: Mapping[str, Any]) -> str:
    first = first_text(schema)
    said = call.arguments.get(first)
    plain = (
        isinstance(said, str) and set(call.arguments) == {first} and said == said.strip() and not said.startswith("{")
    )
    if plain and said and f"</{call.name}>" not in said:
        return str(said)
    return _dumps(call.arguments).replace("<", "\\u003c") if call.arguments else ""


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
