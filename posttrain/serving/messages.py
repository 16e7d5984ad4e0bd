"""The fields of a request that hold text: messages, prompts, tools, and the form of the answer; sizes are checked first."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from posttrain.serving.limits import MAX_SCHEMA_CHARS, MAX_TOOLS, ApiError, Limits, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True)
class ToolChoice:
    """Whether the model may call a tool ("auto"), must not ("none"), or must ("required"), and which."""

    mode: str = "auto"
    name: str = ""


# ---- messages


def messages(given: Any, limits: Limits) -> tuple[dict[str, Any], ...]:
    """Roles and texts, as a chat template takes them; text parts are concatenated, other parts are an error."""
    if not isinstance(given, list) or not given:
        said = "missing" if given is None else "empty" if given == [] else shown(given)
        raise ApiError(400, f"messages is {said}; expected a list of {{role, content}}", "messages")
    if len(given) > limits.max_model_len:
        told = f"{len(given):,} messages; this model has room for {limits.max_model_len:,} tokens"
        raise ApiError(400, told, "messages", "context_length_exceeded")
    out = [message(m, f"messages[{i}]") for i, m in enumerate(given)]
    called = {c["id"]: c["function"]["name"] for m in out for c in m.get("tool_calls", ()) if "id" in c}
    for m in out:
        if m.get("tool_call_id") in called:  # some templates write the name of the tool beside its result
            m.setdefault("name", called[m["tool_call_id"]])
    limits.check_text(sum(len(m["content"]) + json_size(m.get("tool_calls"), "messages") for m in out), "messages")
    return tuple(out)


def message(given: Any, where: str) -> dict[str, Any]:
    if not isinstance(given, dict) or given.get("role") not in ROLES:
        raise ApiError(400, f"{where} has no role; expected one of {', '.join(ROLES)}", where)
    role = "system" if given["role"] == "developer" else given["role"]
    calls = given.get("tool_calls") if role == "assistant" else None
    text = "" if calls and given.get("content") is None else content(given.get("content"), where)
    out = {"role": role, "content": text}
    for name in ("name", "tool_call_id") if role == "tool" else ():
        if isinstance(given.get(name), str):
            out[name] = given[name]
    return out | ({"tool_calls": earlier_calls(calls, where)} if calls else {})


def content(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    parts = given if isinstance(given, list) else None
    if parts is None or not all(is_text_part(p) for p in parts):
        raise ApiError(400, f"{where}.content must be a string or a list of text parts", f"{where}.content")
    return "".join(p["text"] for p in parts)


def is_text_part(given: Any) -> bool:
    return isinstance(given, dict) and given.get("type", "text") == "text" and isinstance(given.get("text"), str)


def earlier_calls(given: Any, where: str) -> list[dict[str, Any]]:
    """The calls of an earlier answer; chat templates take the arguments as an object, OpenAI's API sends them as text."""
    out = []
    for call in given if isinstance(given, list) else [None]:
        call = call if isinstance(call, dict) else {}
        function = call["function"] if isinstance(call.get("function"), dict) else {}
        arguments = function.get("arguments")
        try:
            parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(function.get("name"), str) or not isinstance(parsed, dict):
            told = f"{where}.tool_calls must be a list of {{id, type, function: {{name, arguments}}}}, arguments as a JSON object"
            raise ApiError(400, told, f"{where}.tool_calls")
        named = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
        out.append({**named, "type": "function", "function": {"name": function["name"], "arguments": parsed}})
    return out


# ---- prompts


def prompts(given: Any, limits: Limits) -> tuple[str | list[int], ...]:
    """A text, token ids, or a list of either."""
    several = [given] if isinstance(given, str) or is_token_ids(given) else given
    if isinstance(several, list):
        limits.check_answers(len(several), 1)
    if not isinstance(several, list) or not several or not all(isinstance(p, str) or is_token_ids(p) for p in several):
        raise ApiError(400, "prompt must be a string, a list of token ids, or a list of such prompts", "prompt")
    for one in several:
        limits.check_text(len(one), "prompt")
    return tuple(several)


def is_token_ids(given: Any) -> bool:
    return isinstance(given, list) and bool(given) and all(type(i) is int for i in given)


# ---- tools and the form of the answer


def tools(given: Any) -> tuple[dict[str, Any], ...]:
    """Functions that the model may call, each with a name of its own."""
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise ApiError(400, f"tools is {shown(given)}; expected a list of at most {MAX_TOOLS} functions", "tools")
    out, names = [], set()
    for i, tool in enumerate(given):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            told = f"tools[{i}] is {shown(tool)}; expected {{type: 'function', function: {{name, description, parameters}}}}"
            raise ApiError(400, f"{told}, the name of 1 to 64 letters, digits, '_', '-' or '.'", f"tools[{i}]")
        if name in names:
            raise ApiError(400, f"two tools are named {name!r}; give each a name of its own", f"tools[{i}]")
        description, parameters = function.get("description"), function.get("parameters")
        if not isinstance(parameters, dict | None) or not isinstance(description, str | None):
            told = f"tools[{i}].function has a description, a text, and parameters, a JSON schema (an object)"
            raise ApiError(400, told, f"tools[{i}]")
        names.add(name)
        known = {"name": name, "description": description or "", "parameters": parameters or NO_PARAMETERS}
        out.append({"type": "function", "function": known})  # templates take all three for granted
    check_schema_size(out, "tools")
    return tuple(out)


def tool_choice(given: Any, functions: tuple[dict[str, Any], ...]) -> ToolChoice:
    names = [f["function"]["name"] for f in functions]
    if given is None or given in CHOICES:
        if given == "required" and not functions:
            raise ApiError(400, "tool_choice is 'required' and there are no tools; add tools", "tool_choice")
        return ToolChoice(given or "auto")
    function = given.get("function") if isinstance(given, dict) and given.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        told = (
            f"tool_choice is {shown(given)}; expected {', '.join(CHOICES)} or {{type: 'function', function: {{name}}}}"
        )
        raise ApiError(400, told, "tool_choice")
    if name not in names:
        told = f"tool_choice names {shown(name)}, which is none of the tools ({', '.join(names)[:200] or 'there are none'})"
        raise ApiError(400, told, "tool_choice")
    return ToolChoice("required", name)


def response_schema(given: Any) -> dict[str, Any] | None:
    """The JSON schema that the answer must satisfy; None where any text will do."""
    kind = given.get("type") if isinstance(given, dict) else None
    if given is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    inner = given.get("json_schema") if isinstance(given, dict) and kind == "json_schema" else None
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        told = f"response_format is {shown(given)}; expected {{type: 'text'}}, {{type: 'json_object'}} or"
        raise ApiError(400, f"{told} {{type: 'json_schema', json_schema: {{name, schema}}}}", "response_format")
    check_schema_size(schema, "response_format")
    return schema


def check_schema_size(given: Any, name: str) -> None:
    size = json_size(given, name)
    if size > MAX_SCHEMA_CHARS:
        raise ApiError(400, f"{name} takes {size:,} characters; at most {MAX_SCHEMA_CHARS:,} are read", name)


def json_size(given: Any, name: str) -> int:
    """Characters of a value as JSON."""
    try:
        return len(json.dumps(given))
    except RecursionError:
        raise ApiError(400, f"{name} is nested too deeply", name) from None
