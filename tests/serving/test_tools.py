"""Tools: prompts as the model's template writes them, calls found in what it says, whole and in chunks of any size."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from posttrain.serving.limits import ApiError
from posttrain.serving.messages import tools as given_tools
from posttrain.serving.openai import parse_request
from posttrain.serving.server import Server
from posttrain.serving.service import Service, hidden_ids
from posttrain.serving.tools import FORMS, HERMES, LLAMA, MISTRAL, Call, ToolFormat, ToolParser, forced_call
from posttrain.tools import calls as tools
from posttrain.tools.one_call import Call as Written
from posttrain.tools.written import render
from tests.serving.serving import SUM, call, events, start

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
TEMPLATE = (
    "{% if tools %}<|system|>Call with <tool_call>:{% for t in tools %} {{ t | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def given(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


ASK = {"messages": [{"role": "user", "content": SUM}], "temperature": 0}


# ---- finding calls

ONE = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
TWO = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'


KNOWN = {"weather": WEATHER["function"]["parameters"], "clock": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("form", "text", "said", "calls"),
    [
        (HERMES, ONE, "", [("weather", {"city": "Oslo"})]),
        (HERMES, f"I look.\n{ONE}\n{TWO}\n", "I look.", [("weather", {"city": "Oslo"}), ("clock", {})]),
        (HERMES, f"A\n\n{TWO} then B ", "A then B", [("clock", {})]),
        (HERMES, "  no call < here <tool> \n", "  no call < here <tool> \n", []),
        (HERMES, "<tool_call>{broken</tool_call> x", "<tool_call>{broken</tool_call> x", []),
        (HERMES, '<tool_call>{"name": "other"}</tool_call>', '<tool_call>{"name": "other"}</tool_call>', []),
        (HERMES, '<tool_call>{"name": "clock", "arguments": {"x": NaN}}', '<tool_call>{"name": "clock", "arguments": {"x": NaN}}', []),
        (HERMES, '<tool_call>{"name": "clock"}', "", [("clock", {})]),  # the answer ended before the tag
        (HERMES, '<tool_call>{"name": "clo', '<tool_call>{"name": "clo', []),  # cut off: text, not lost
        (HERMES, "", "", []),
        (LLAMA, '{"name": "weather", "parameters": {"city": "né"}}', "", [("weather", {"city": "né"})]),
        (LLAMA, ' <|python_tag|>{"name": "clock", "parameters": {}}', "", [("clock", {})]),
        (HERMES, '<tool_call>{"name": "clock", "arguments": {}, }</tool_call>', "", [("clock", {})]),  # mended, as in training
        (HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "a </tool_call> b"}}</tool_call>.', ".", [("weather", {"city": "a </tool_call> b"})]),
        (HERMES, '<tool_call>{"name": "weather"}</tool_call>', '<tool_call>{"name": "weather"}</tool_call>', []),  # its arguments were lost
        (MISTRAL, '[TOOL_CALLS] [{"name": "clock", "arguments": {}}, {"name": "weather", "arguments": {"city": "Oslo"}, "id": "abcdefghi"}]', "",
         [("clock", {}), ("weather", {"city": "Oslo"})]),
        (MISTRAL, 'I look.\n[TOOL_CALLS]weather[ARGS]{"city": "[TOOL_CALLS]"}[TOOL_CALLS]clock[ARGS]{}', "I look.", [("weather", {"city": "[TOOL_CALLS]"}), ("clock", {})]),
        (MISTRAL, "A list: [1, 2] and [TOOL", "A list: [1, 2] and [TOOL", []),
        (MISTRAL, '[TOOL_CALLS] [{"name": "other", "arguments": {}}]', '[TOOL_CALLS] [{"name": "other", "arguments": {}}]', []),
        (LLAMA, '{"name": "clock", "parameters": {}}; {"name": "clock", "parameters": {}}', "", [("clock", {}), ("clock", {})]),
        (LLAMA, '{"a": 1} is JSON ', '{"a": 1} is JSON ', []),
        (LLAMA, 'So {"name": "clock", "parameters": {}}', 'So {"name": "clock", "parameters": {}}', []),
        (LLAMA, "{{" + "[" * 2_000, "{{" + "[" * 2_000, []),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_calls_are_found(form: ToolFormat, text: str, said: str, calls: list[Any], step: int) -> None:
    parser, heard, made = ToolParser(form, KNOWN), "", list[Call]()
    for n in [*range(0, len(text), step), len(text)]:
        for done in (False, True)[: 1 + (n == len(text))]:
            more, found = parser.feed(text[:n], done)
            heard, made = heard + more, made + found
    assert heard == said and [(c.name, json.loads(c.arguments)) for c in made] == calls
    assert len({c.id for c in made}) == len(made)


@pytest.mark.parametrize("form", FORMS.values())
def test_no_more_than_one_call_where_they_are_not_parallel(form: ToolFormat) -> None:
    two = render([Written("clock", {})] * 2, form.name, KNOWN)
    for text in (two, f"{two}\n{two}" if form is HERMES else two):
        assert len(ToolParser(form, KNOWN, parallel=False).feed(text, True)[1]) == 1
        assert len(ToolParser(form, KNOWN).feed(text, True)[1]) == text.count("clock")


@pytest.mark.parametrize("form", FORMS.values())
def test_what_streams_is_what_is_read_at_once(form: ToolFormat) -> None:
    """In pieces of any size, texts with tags and brackets in their arguments: the calls of `tools.calls.parse`, which training reads with."""
    rng = random.Random(form.name)
    odd = ["a", '"', "\\", "{", "}", "]", "[TOOL_CALLS]", "</tool_call>", "<tool_call>", "\n", " "]
    for _ in range(200):
        calls = [Written("weather", {"city": "".join(rng.choices(odd, k=4))}) for _ in range(rng.randrange(1, 3))]
        text = render(calls, form.name, KNOWN)
        parser, made, at = ToolParser(form, KNOWN), list[Call](), 0
        while at < len(text):
            at += rng.randrange(1, 9)
            made += parser.feed(text[:at], at >= len(text))[1]
        want = tools.parse(text, KNOWN, form.name).calls
        assert want == tuple(calls) and [(c.name, json.loads(c.arguments)) for c in made] == [
            (c.name, c.arguments) for c in want
        ], text


def test_text_is_not_held_back_longer_than_needed() -> None:
    parser = ToolParser(HERMES, KNOWN)
    assert parser.feed("Hello <tool", False) == ("Hello", []) and parser.feed("Hello <tools", False) == (" <tools", [])
    assert ToolParser(LLAMA, KNOWN).feed("Hello", False) == ("Hello", [])


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
@pytest.mark.parametrize("form", [HERMES, LLAMA])
def test_a_call_inside_a_thought_is_no_call(form: ToolFormat, size: int) -> None:
    made = ONE if form is HERMES else '{"name": "weather", "parameters": {"city": "Oslo"}}'
    for lead, thought in (
        ("", f"<think>I could {made}</think>"),
        ("<think>\n", f"I could {made}</think>"),
        ("", "<think>x</think>\n\n"),
    ):
        parser, said, calls = ToolParser(form, KNOWN, lead), "", list[Call]()
        whole = thought + made
        for end in (*range(size, len(whole), size), len(whole)):
            text, found = parser.feed(whole[:end], end == len(whole))
            said, calls = said + text, calls + found
        assert said == thought.rstrip() and [c.name for c in calls] == ["weather"]
        alone = ToolParser(form, KNOWN, lead).feed(thought.removesuffix("</think>"), True)
        assert not alone[1]


def test_definitions_of_a_forced_call_come_along() -> None:
    params = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": name, "parameters": params}} for name in ("f", "g")]
    tools = list(given_tools(tools))
    schema = forced_call(tools, "", HERMES)
    assert schema["$defs"] == params["$defs"] and len(schema["anyOf"]) == 2 and "$defs" in params
    assert forced_call(tools, "g", LLAMA)["anyOf"][0]["required"] == ["name", "parameters"]
    tools[1]["function"]["parameters"] = {**params, "$defs": {"A": {"type": "string"}}}
    with pytest.raises(ApiError, match="two tools define 'A'"):
        forced_call(tools, "", HERMES)


def test_tags_that_are_special_tokens_are_shown(policy: Any) -> None:
    assert hidden_ids(policy.tokenizer) == set()
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": [HERMES.open, HERMES.close]})
    hidden = hidden_ids(tokenizer)
    assert tokenizer.eos_token_id in hidden and not hidden & {
        *tokenizer(HERMES.open, add_special_tokens=False)["input_ids"]
    }


# ---- over HTTP


@pytest.fixture(scope="module")
def taught(policy: Any) -> Iterator[Server]:
    """The built-in model with a template that takes tools."""
    pupil = copy.copy(policy)
    pupil.tokenizer = copy.deepcopy(policy.tokenizer)
    pupil.tokenizer.chat_template = TEMPLATE
    server = start(Service(pupil, "pocket"))
    yield server
    server.stop()
    server.service.close()


def test_a_call_that_is_required_is_made_whole_and_streamed(taught: Server) -> None:
    body = ASK | {
        "tools": [WEATHER, CLOCK],
        "tool_choice": "required",
        "temperature": 0.7,
        "max_tokens": 300,
        "seed": 1,
    }
    body |= {"tool_choice": {"type": "function", "function": {"name": "weather"}}}
    status, answer = call(taught, "/v1/chat/completions", body)
    assert status == 200, answer
    choice = answer["choices"][0]
    (made,) = choice["message"]["tool_calls"]
    arguments = json.loads(made["function"]["arguments"])
    assert made["function"]["name"] == "weather" and made["type"] == "function" and made["id"].startswith("call_")
    assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9 and len(arguments) == 2
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    chunks = [c for p in events(taught, "/v1/chat/completions", body) for c in p["choices"]]
    (streamed,) = [c["delta"]["tool_calls"] for c in chunks if "tool_calls" in c["delta"]]
    assert streamed == [{"index": 0, **made, "id": streamed[0]["id"]}]
    assert chunks[-1]["finish_reason"] == "tool_calls" and not any(c["delta"].get("content") for c in chunks)


def test_any_of_the_tools_may_be_the_one(taught: Server) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in "ab"]
    body = ASK | {"tools": tools, "tool_choice": "required", "temperature": 3, "seed": 1, "max_tokens": 200, "n": 8}
    choices = call(taught, "/v1/chat/completions", body)[1]["choices"]
    calls = [c["message"]["tool_calls"][0]["function"] for c in choices]
    assert {c["name"] for c in calls} == {"a", "b"} and {c["arguments"] for c in calls} == {"{}"}


def test_earlier_calls_and_results_are_written_by_the_template(taught: Server) -> None:
    earlier = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    body = {"messages": messages, "tools": [CLOCK], "max_tokens": 1, "return_token_ids": True}
    answer = call(taught, "/v1/chat/completions", body)[1]
    text = taught.service.decode(answer["prompt_token_ids"], special=True)
    assert '<tool_call>{"name": "clock", "arguments": {"zone": "UTC"}}</tool_call>' in text
    assert text.endswith("<|tool|>12:00<|end|><|assistant|>") and '"name": "clock"' in text.split("<|end|>")[0]
    quiet = call(taught, "/v1/chat/completions", body | {"tool_choice": "none"})[1]
    assert "Call with" not in taught.service.decode(quiet["prompt_token_ids"], special=True)


HERMES_LIKE = (
    "{% for t in tools or [] %}{{ t.function.name + ': ' + t.function.description }}"
    "{% for k, v in t.function.parameters.properties | items %} {{ k }}{% endfor %}{% endfor %}<tool_call>"
    "{% for m in messages %}{% if m.role == 'tool' %}{% if m.name is not defined %}{{ raise_exception('no name') }}{% endif %}"
    "<{{ m.name }}>{% endif %}{{ m.content }}{% endfor %}"
)


def test_templates_get_what_they_take_for_granted(policy: Any) -> None:
    """A description and parameters for every tool, and for a result the name of its tool, which OpenAI's clients do not send."""
    pupil = copy.copy(policy)
    pupil.tokenizer = copy.deepcopy(policy.tokenizer)
    pupil.tokenizer.chat_template = HERMES_LIKE
    earlier = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    service = Service(pupil, "pocket")
    try:
        reply = service.submit(
            parse_request({"messages": messages, "tools": [CLOCK, WEATHER], "max_tokens": 1}, "chat")
        )
        text = service.decode(reply.request.jobs[0].context.tolist(), special=True)
        assert text == "clock: weather: The weather of a city city days<tool_call><clock>12:00"
    finally:
        service.close()


def test_calls_without_an_id_are_calls_and_name_nothing_else() -> None:
    earlier = {"type": "function", "function": {"name": "clock", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "tool_calls": [earlier]},
        {"role": "tool", "content": "12:00"},
    ]
    params = parse_request({"messages": said}, "chat")
    assert params.messages[1]["tool_calls"] == [{**earlier, "function": {"name": "clock", "arguments": {}}}]
    assert not any("name" in m for m in params.messages)


def test_one_call_at_a_time(taught: Server) -> None:
    """Without parallel calls an answer ends with its first; the tag is not needed to find it."""
    params = parse_request(ASK | {"tools": [CLOCK], "parallel_tool_calls": False}, "chat")
    reply = taught.service.submit(params)
    reply.cancel()
    text = "<tool_call>{}</tool_call> more"
    ids = taught.service.policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    found = reply.request.jobs[0].find_stop(torch.tensor(ids))
    assert taught.service.decode(ids[:found]).endswith("</tool_call>")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": "x"}, "expected a list of at most 128 functions"),
        ({"tools": [CLOCK] * 129}, "expected a list of at most 128 functions"),
        ({"tools": [{}]}, "tools[0] is {}; expected {type: 'function'"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "the name of 1 to 64 letters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 3}}]}, "a JSON schema (an object)"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 0}}]}, "a JSON schema (an object)"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": []}}]}, "a description, a text"),
        ({"tools": [CLOCK, CLOCK]}, "two tools are named 'clock'"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": "x" * 65_000}}]}, "at most 64,000"),
        ({"tools": [CLOCK], "tool_choice": "maybe"}, "tool_choice is 'maybe'; expected none, auto, required or"),
        ({"tool_choice": "required"}, "there are no tools; add tools"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "none of the tools (clock)"),
        ({"tools": [CLOCK], "response_format": {"type": "json_object"}}, "give one of them"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls must be a list of"),
        ({"tools": [WEATHER | {"function": {"name": "w", "parameters": {"type": "foo"}}}], "tool_choice": "required"},
         "no answer can be held to this schema"),
        ({"tools": [given("w", {"$defs": [1]})], "tool_choice": "required"}, "$defs of the tool w is [1]; expected an object"),
        ({"tools": [given("w", {"definitions": "x"})], "tool_choice": "required"}, "definitions of the tool w is 'x'; expected"),
        ({"tools": [given("w", {"properties": {"a": {"anyOf": [{"$ref": "#"}]}}})], "tool_choice": "required"},
         "the tool w refers to '#'; put what it refers to under $defs"),
    ],
)  # fmt: skip
def test_mistakes(taught: Server, more: dict[str, Any], words: str) -> None:
    status, answer = call(taught, "/v1/chat/completions", ASK | more)
    assert status == 400 and words in answer["error"]["message"]


def test_a_model_whose_template_has_no_place_for_tools_is_told_in_words(server: Server) -> None:
    earlier = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    messages = [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [earlier]},
        {"role": "tool", "tool_call_id": "call_1", "content": "12:00"},
    ]
    body = {"messages": messages, "tools": [CLOCK], "max_tokens": 1, "return_token_ids": True}
    status, answer = call(server, "/v1/chat/completions", body)
    assert status == 200, answer
    text = server.service.decode(answer["prompt_token_ids"], special=True)
    assert text.startswith("<|system|>You may call tools:") and '"name": "clock"' in text.split("<|end|>")[0]
    assert 'I look.\n<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call><|end|>' in text
    assert text.endswith("<|user|><tool_response>\n12:00\n</tool_response><|end|><|assistant|>")
    forced = call(
        server, "/v1/chat/completions", ASK | {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 300}
    )[1]
    (made,) = forced["choices"][0]["message"]["tool_calls"]
    assert made["function"]["name"] == "weather" and json.loads(made["function"]["arguments"])["city"] in (
        "Oslo",
        "Rome",
    )
