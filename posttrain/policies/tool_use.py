"""Tools in a conversation: as the model's chat template writes them, in words where it has no place for them.

Where the template takes `tools` and teaches a format that is read here (or the one that was asked for), it is given the schemas, and
results are messages of its own role `tool`. Else a system message describes the tools, and results are a user's message between
<tool_response> tags: a role that a model has never seen is worse than words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from posttrain.core.types import Message, Prompt
from posttrain.tools.calls import BESIDE_MISTRAL, HERMES, MISTRAL, PYTHON_TAG, PYTHONIC, format_of
from posttrain.tools.one_call import Call
from posttrain.tools.written import described, render

RESULT = "<tool_response>\n{}\n</tool_response>"
_TOOLS = re.compile(r"\btools\b")
_ROLE = re.compile(r"""['"]tool['"]""")
_NO_SYSTEM = re.compile(r"raise_exception\([^)]*[Ss]ystem role not supported")  # Gemma
_TAGS = (*HERMES, MISTRAL, PYTHON_TAG, *PYTHONIC)


def template_of(tokenizer: Any) -> str | None:
    """The chat template that is used where there are tools."""
    template = getattr(tokenizer, "chat_template", None)
    return template.get("tool_use", template.get("default")) if isinstance(template, dict) else template


def own_format(tokenizer: Any) -> str:
    """The format in which the model's own template offers tools; empty where it has no place for them."""
    template = template_of(tokenizer) or ""
    return format_of(template) if _TOOLS.search(template) else ""


def offered(tokenizer: Any, prompt: Prompt, content: Sequence[Message]) -> tuple[list[Message], list[Any] | None]:
    """The messages of a prompt and what its template is given as `tools`; without a place for them, a system message tells."""
    schemas: Any = prompt.info.get("tools")
    asked = str(prompt.info.get("tool_format", "auto"))
    messages = results(tokenizer, content)
    if not are_schemas(schemas):
        return messages, None
    own = own_format(tokenizer)
    if own and asked in ("auto", own):
        return messages, list(schemas)
    told = described(schemas, "hermes" if asked == "auto" else asked)
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}, *messages[1:]], None
    if messages and _NO_SYSTEM.search(template_of(tokenizer) or ""):
        return [{**messages[0], "content": f"{told}\n\n{messages[0]['content']}"}, *messages[1:]], None
    return [{"role": "system", "content": told}, *messages], None


def are_schemas(value: Any) -> bool:
    """Whether it is a list of tools as chat templates take them; a column of that name may hold anything."""
    ones = value if isinstance(value, list | tuple) else ()
    known = [one["function"] for one in ones if isinstance(one, dict) and isinstance(one.get("function"), dict)]
    return bool(known) and len(known) == len(ones) and all(isinstance(f.get("name"), str) for f in known)


def results(tokenizer: Any, messages: Sequence[Message]) -> list[Message]:
    """The messages with results of tools as the model can read them, and no control token of the model in any result."""
    if not any(m.get("role") == "tool" or m.get("tool_calls") for m in messages):
        return list(messages)
    own = own_format(tokenizer)
    messages = messages if own or not getattr(tokenizer, "chat_template", None) else [in_words(m) for m in messages]
    kept = [
        m if m.get("role") != "tool" else {**m, "content": harmless(tokenizer, str(m["content"]))} for m in messages
    ]
    if own and _ROLE.search(template_of(tokenizer) or ""):
        return kept
    out: list[Message] = []
    for told, some in groupby(kept, lambda m: m.get("role") == "tool"):
        if told:  # one message, because many templates want user and assistant in turn
            out.append({"role": "user", "content": "\n".join(RESULT.format(m["content"]) for m in some)})
        else:
            out += some
    return out


def in_words(message: Message) -> Message:
    """A message whose calls are part of its text, for a template that does not know calls."""
    if not message.get("tool_calls"):
        return message
    made = [c["function"] for c in message["tool_calls"]]
    calls = [
        Call(f["name"], json.loads(f["arguments"]) if isinstance(f["arguments"], str) else f["arguments"]) for f in made
    ]
    said = "\n".join(filter(None, [str(message["content"] or ""), render(calls, "hermes", {})]))
    return {**{k: v for k, v in message.items() if k != "tool_calls"}, "content": said}


def harmless(tokenizer: Any, text: str) -> str:
    """A text from outside without the model's control tokens: a page that says <|im_end|> must not end a turn. Half a character (a lone
    surrogate) becomes a question mark."""
    text = text.encode("utf-8", "replace").decode()
    for token in control_tokens(tokenizer):
        if token in text:
            text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def control_tokens(tokenizer: Any) -> list[str]:
    """What a text from outside must not say: special tokens, whether the tokenizer gives them a role or not (of Llama 3's it names only
    the first and the last), other added tokens that its chat template writes (Gemma's turns), and the tags around results and calls."""
    template = template_of(tokenizer) or ""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    own = [str(token) for token in added if token.special or str(token) in template]
    every = {*getattr(tokenizer, "all_special_tokens", ()), *own, *_TAGS, *RESULT.split("\n{}\n")}
    return sorted(token for token in every if len(token) > 1 and not token.isspace())


def shown_ids(tokenizer: Any) -> frozenset[int]:
    """Special tokens that are tags around calls: a text without them would lose its calls."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(i for i, token in added.items() if token.special and str(token) in (*_TAGS, *BESIDE_MISTRAL))
