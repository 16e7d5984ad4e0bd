"""Calls as models write them: a table of texts for every format, with faults and attacks, and render -> parse as the identity."""

from __future__ import annotations

import random
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.tools.calls import FORMATS, Parsed, detect, format_of, parse
from posttrain.tools.one_call import Call
from posttrain.tools.repair import ends_inside, repaired_json
from posttrain.tools.tool import tool
from posttrain.tools.written import described, render
from tests.policies.thinkers import TEMPLATES


def search(query: str, k: int = 3) -> str:
    """Find documents.

    query: words
    """
    return query * k


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def now() -> str:
    """The time."""
    return "noon"


OFFERED = [tool(search), tool(add), tool(now)]
TOOLS = {t.name: t.parameters for t in OFFERED}
OPEN, C = "<tool_call>", "</tool_call>"
S = Call("search", {"query": "Oslo"})
R = Call("search", {"query": "Oslo"}, repaired=True)
ADD = Call("add", {"a": 1, "b": 2})
GOOD = '{"name": "search", "arguments": {"query": "Oslo"}}'
LLAMA = '{"name": "search", "parameters": {"query": "Oslo"}}'

# text -> (text outside calls, calls)
READ: list[tuple[str, str, str, list[Call]]] = [
    # hermes
    ("hermes", f"{OPEN}{GOOD}{C}", "", [S]),
    ("hermes", f"{OPEN}\n{GOOD}\n{C}", "", [S]),
    ("hermes", f"I look. {OPEN}{GOOD}{C} Then I answer.", "I look.  Then I answer.", [S]),
    ("hermes", f'{OPEN}{GOOD}{C}{OPEN}{{"name": "add", "arguments": {{"a": 1, "b": 2}}}}{C}', "", [S, ADD]),
    ("hermes", "No call here.", "No call here.", []),
    ("hermes", "", "", []),
    ("hermes", "1 < 2 and <b>bold</b>", "1 < 2 and <b>bold</b>", []),
    ("hermes", f"<think>I could {OPEN}{GOOD}{C}</think>It is 4.", f"<think>I could {OPEN}{GOOD}{C}</think>It is 4.", []),
    ("hermes", f"<think>hm</think>{OPEN}{GOOD}{C}", "<think>hm</think>", [S]),
    ("hermes", f"<think>never closed {OPEN}{GOOD}{C}", f"<think>never closed {OPEN}{GOOD}{C}", []),
    ("hermes", f"{OPEN}{GOOD}{C}<think>and {OPEN}{GOOD}{C}</think>", f"<think>and {OPEN}{GOOD}{C}</think>", [S]),
    ("hermes", f"I could {OPEN}{GOOD}{C} but no</think>4", f"I could {OPEN}{GOOD}{C} but no</think>4", []),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "what is </think>"}}}}{C}', "", [Call("search", {"query": "what is </think>"})]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "a {C} b"}}}}{C}', "", [Call("search", {"query": f"a {C} b"})]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "{OPEN}"}}}}{C}', "", [Call("search", {"query": OPEN})]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "Os\nlo"}}}}{C}', "", [Call("search", {"query": "Os\nlo"}, True)]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "a\tb"}}}}{C}', "", [Call("search", {"query": "a\tb"}, True)]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "Oslo",}},}}{C}', "", [R]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "Oslo"}}{C}', "", [R]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "Oslo"{C}', "", [R]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": "{{\\"query\\": \\"Oslo\\"}}"}}{C}', "", [R]),
    ("hermes", f"{OPEN}{LLAMA}{C}", "", [R]),
    ("hermes", f'{OPEN}{{"id": "1", "type": "function", "name": "now", "arguments": {{}}}}{C}', "", [Call("now", {})]),
    ("hermes", f'{OPEN}{{"name": "nosuch", "arguments": {{}}}}{C}', "", [Call("nosuch", {})]),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "\\u00e9 \\"x\\" \\\\"}}}}{C}', "", [Call("search", {"query": 'é "x" \\'})]),
    # llama
    ("llama", LLAMA, "", [S]),
    ("llama", f"<|python_tag|>{LLAMA}", "", [S]),
    ("llama", f"Let me see.<|python_tag|>{LLAMA}", "Let me see.", [S]),
    ("llama", f'{LLAMA}; {{"name": "add", "parameters": {{"a": 1, "b": 2}}}}', "", [S, ADD]),
    ("llama", f"<think>hm</think>\n\n{LLAMA}", "<think>hm</think>", [S]),
    ("llama", GOOD, "", [R]),
    ("llama", '{"type": "function", "name": "search", "parameters": {"query": "Oslo"}}', "", [S]),
    ("llama", '{"name": "search", "parameters": {"query": "Oslo"}', "", [R]),
    ("llama", '{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 36}', []),
    ("llama", '{"answer": 4}', '{"answer": 4}', []),
    ("llama", f"The call is {LLAMA}", f"The call is {LLAMA}", []),
    ("llama", "It is 4.", "It is 4.", []),
    # xml
    ("xml", "<search>Oslo</search>", "", [S]),
    ("xml", "I look. <search> Oslo </search>", "I look.", [S]),
    ("xml", "<search>a</search><search>b</search>", "", [Call("search", {"query": "a"}), Call("search", {"query": "b"})]),
    ("xml", '<add>{"a": 1, "b": 2}</add>', "", [ADD]),
    ("xml", '<search>{"query": "Oslo", "k": 1}</search>', "", [Call("search", {"query": "Oslo", "k": 1})]),
    ("xml", '<search>{"other": 1}</search>', "", [Call("search", {"query": '{"other": 1}'})]),
    ("xml", "<search>1 < 2 & 3</search>", "", [Call("search", {"query": "1 < 2 & 3"})]),
    ("xml", "<now></now>", "", [Call("now", {})]),
    ("xml", "<think><search>a</search></think><search>Oslo</search>", "<think><search>a</search></think>", [S]),
    ("xml", "<answer>4</answer>", "<answer>4</answer>", []),
    ("xml", "<Search>Oslo</Search>", "<Search>Oslo</Search>", []),
    # mistral
    ("mistral", f"[TOOL_CALLS] [{GOOD}]", "", [S]),
    ("mistral", f"[TOOL_CALLS][{GOOD}, {{\"name\": \"add\", \"arguments\": {{\"a\": 1, \"b\": 2}}, \"id\": \"a1b2c3d4e\"}}]", "", [S, ADD]),
    ("mistral", f"I look. [TOOL_CALLS] [{GOOD}]", "I look.", [S]),
    ("mistral", f"[TOOL_CALLS] {GOOD}", "", [S]),
    ("mistral", '[TOOL_CALLS]search[ARGS]{"query": "Oslo"}', "", [S]),
    ("mistral", '[TOOL_CALLS]search[CALL_ID]a1b2c3d4e[ARGS]{"query": "Oslo"}[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}', "", [S, ADD]),
    ("mistral", '[TOOL_CALLS]search {"query": "Oslo"}', "", [S]),  # a decoder that leaves out special tokens
    ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "[TOOL_CALLS] ]"}}]', "", [Call("search", {"query": "[TOOL_CALLS] ]"})]),
    ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "what is </think>"}}]', "", [Call("search", {"query": "what is </think>"})]),
    ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "Oslo"}', "", [R]),
    ("mistral", '[TOOL_CALLS] [{"name": "now"}]', "", [Call("now", {}, True)]),  # it takes none
    ("mistral", f"<think>I could [TOOL_CALLS] [{GOOD}]</think>4", f"<think>I could [TOOL_CALLS] [{GOOD}]</think>4", []),
    ("mistral", f"I could [TOOL_CALLS] [{GOOD}] but no</think>4", f"I could [TOOL_CALLS] [{GOOD}] but no</think>4", []),
    ("mistral", "It is [4].", "It is [4].", []),
    # python
    ("python", '[search(query="Oslo")]', "", [S]),
    ("python", "[search(query='Oslo'), add(a=1, b=2)]", "", [S, ADD]),
    ("python", "[add(a=1, b=2,)]", "", [ADD]),
    ("python", "[now()]", "", [Call("now", {})]),
    ("python", '[search(query="Oslo")', "", [R]),
    ("python", '[search(query="Os\nlo")]', "", [Call("search", {"query": "Os\nlo"}, True)]),
    ("python", "[f(x=[1, (2, 3)], y={'a': None, 'b': -1.5, 'c': True})]", "", [Call("f", {"x": [1, [2, 3]], "y": {"a": None, "b": -1.5, "c": True}})]),
    ("python", '<|python_start|>[search(query="Oslo")]<|python_end|>', "", [S]),
    ("python", "<think>hm</think>[now()]", "<think>hm</think>", [Call("now", {})]),
    ("python", "[1, 2, 3]", "[1, 2, 3]", []),
    ("python", "[(1, 2)]", "[(1, 2)]", []),
    ("python", "It is [now()].", "It is [now()].", []),
]  # fmt: skip

# text -> words of its one fault, whether the turn ended inside a call
FAULTS: list[tuple[str, str, str, bool]] = [
    ("hermes", f"{OPEN}search Oslo{C}", "not JSON", False),
    ("hermes", f"{OPEN}{C}", "not JSON", False),
    ("hermes", f"{OPEN}{GOOD}", f"close it with {C}", True),
    ("hermes", f"{GOOD}{C}", "without a <tool_call>", False),
    ("hermes", f'{OPEN}{{"name": "search"}}{C}', "no arguments", False),
    ("hermes", f'{OPEN}{{"name": "search", "query": "Oslo"}}{C}', "'query' beside its arguments", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{}}, "query": "Oslo"}}{C}', "beside its arguments", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": null}}{C}', "no JSON object", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": ["Oslo"]}}{C}', "no JSON object", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": "Oslo"}}{C}', "no JSON object", False),
    ("hermes", f'{OPEN}{{"arguments": {{"query": "Oslo"}}}}{C}', "has no name", False),
    ("hermes", f'{OPEN}{{"name": 3, "arguments": {{}}}}{C}', "has no name", False),
    ("hermes", f"{OPEN}[{GOOD}]{C}", "has no name", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "Os{C}', "not JSON", False),  # a text without its end is lost
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "Oslo", {C}', "not JSON", False),  # so is what a comma promises
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": {C}', "not JSON", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{"query": "a", "query": "b"}}}}{C}', "twice", False),
    ("hermes", f'{OPEN}{{"name": "add", "arguments": {{"a": NaN, "b": 1}}}}{C}', "NaN", False),
    ("hermes", f'{OPEN}{{"name": "add", "arguments": {{"a": 1e999, "b": 1}}}}{C}', "too large", False),
    ("hermes", f'{OPEN}{{"name": "add", "arguments": {{"a": {"9" * 5000}, "b": 1}}}}{C}', "not JSON", False),
    ("hermes", f'{OPEN}{{"name": "f", "arguments": {{"a": {"[" * 9000}{"]" * 9000}}}}}{C}', "nested too deeply", False),
    ("hermes", f"{OPEN}{GOOD}}}{C}", "not JSON", False),
    ("hermes", f"{OPEN}{GOOD}{GOOD}{C}", "not JSON", False),
    ("hermes", f"{OPEN}{{'name': 'search', 'arguments': {{}}}}{C}", "not JSON", False),
    ("hermes", f'{OPEN}{{"name": "search", "arguments": {{}}, "parameters": {{}}}}{C}', "two sets", False),
    ("llama", '<|python_tag|>brave_search.call(query="Oslo")', "not JSON", False),
    ("llama", "<|python_tag|>", "nothing after", False),
    ("llama", '{"name": "search", "parameters": {"query": "Os', "not JSON", True),
    ("llama", '{"name": "search", "parameters": null}', "no JSON object", False),
    ("xml", "<search>Oslo", "close it with </search>", True),
    ("xml", "<search></search>", "no arguments", False),
    ("xml", "<add>1, 2</add>", "no arguments that can be read", False),
    ("mistral", "[TOOL_CALLS] search Oslo", "is not JSON", False),
    ("mistral", "[TOOL_CALLS] []", "no call in it", False),
    ("mistral", '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "Os', "is not JSON", True),
    ("mistral", '[TOOL_CALLS]search[ARGS]{"query": "Os', "are not JSON", True),
    ("mistral", '[TOOL_CALLS] [{"name": "search"}]', "no arguments", False),
    ("python", '[search("Oslo")]', "without names", False),
    ("python", "[search(**{'query': 'Oslo'})]", "without names", False),
    ("python", "[search(query=__import__('os').system('id'))]", "no plain value", False),
    ("python", "[search(query=open)]", "no plain value", False),
    ("python", "[f(x=1j)]", "no plain value", False),
    ("python", "[f(x={1: 2})]", "no plain value", False),
    ("python", "[f(x=1), 3]", "'3' is no call", False),
    ("python", '[search(query="Os', "not a list", True),
    ("python", "[search(query=)]", "not a list", False),
    ("python", f"[f(x={'(' * 3000}{')' * 3000})]", "not a list", False),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "outside", "calls"), READ)
def test_what_is_read_by_its_format_and_by_itself(format, text, outside, calls):
    assert parse(text, TOOLS, format) == Parsed(outside, tuple(calls))
    if calls:  # "auto" finds the format in the text; `python` and `f` are tools that it need not know
        assert detect(text[text.rfind("</think>") + 8 :] if text.startswith("<think>") else text, TOOLS) == format
        assert parse(text, TOOLS, "auto") == Parsed(outside, tuple(calls))


@pytest.mark.parametrize(("format", "text", "told", "unclosed"), FAULTS)
def test_what_cannot_be_read_is_a_sentence_and_never_a_call(format, text, told, unclosed):
    found = parse(text, TOOLS, format)
    assert len(found.faults) == 1 and told in found.faults[0] and found.unclosed == unclosed
    assert not [c for c in found.calls if c.name != "f"]  # of `[f(x=1), 3]` the first is a call
    assert "\n" not in found.faults[0] and len(found.faults[0]) < 300


@pytest.mark.parametrize("format", [*FORMATS, "auto"])
def test_a_turn_that_was_cut_off_has_no_calls(format):
    written = render([S], "hermes" if format == "auto" else format, TOOLS)
    assert parse(written, TOOLS, format).calls == (S,)
    assert parse(written, TOOLS, format, cut=True) == Parsed("")
    assert parse("so far", TOOLS, format, cut=True) == Parsed("so far")
    if format in ("hermes", "xml", "auto"):
        assert parse(f"so far {written}", TOOLS, format, cut=True) == Parsed("so far ")


def test_a_models_own_id_of_a_call_is_kept():
    said = '[TOOL_CALLS] [{"name": "now", "arguments": {}, "id": "a1b2c3d4e"}]'
    named = "[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}"
    assert [parse(text, TOOLS).calls[0].id for text in (said, named, f"{OPEN}{GOOD}{C}")] == [
        "a1b2c3d4e",
        "a1b2c3d4e",
        "",
    ]


def test_good_calls_beside_a_bad_one_are_read():
    found = parse(f"{OPEN}{GOOD}{C}{OPEN}oops{C}{OPEN}{GOOD}{C}", TOOLS, "hermes")
    assert found.calls == (S, S) and len(found.faults) == 1 and not found.unclosed


def test_an_unknown_format_is_named():
    with pytest.raises(UserError, match="hermes"):
        parse("", TOOLS, "hermse")


def some_value(rng: random.Random, depth: int = 0) -> Any:
    kinds = "snfbo" + ("ld" if depth < 2 else "")
    kind = rng.choice(kinds)
    if kind == "l":
        return [some_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == "d":
        return {some_text(rng): some_value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return {"s": some_text(rng), "n": rng.randrange(-99, 99), "f": rng.random(), "b": rng.random() < 0.5, "o": None}[
        kind
    ]


def some_text(rng: random.Random) -> str:
    odd = [
        "a",
        "Ω",
        "\n",
        '"',
        "'",
        "\\",
        "{",
        "}",
        "</tool_call>",
        "</search>",
        "[TOOL_CALLS]",
        "<search>",
        ", ",
        " ",
        "]",
        "<think>",
        ";",
    ]
    return "".join(rng.choice(odd) for _ in range(rng.randrange(6)))


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_rendered_is_read_back(format):
    rng = random.Random(format)
    names = ["query", "k", "x1"]
    schema = {"properties": {"query": {"type": "string"}, "k": {}, "x1": {}}, "required": ["query"]}
    tools = {"search": schema, "find": schema}
    for _ in range(300):
        calls = tuple(
            Call(rng.choice(list(tools)), {"query": some_text(rng)} | {n: some_value(rng) for n in rng.sample(names, rng.randrange(3))})
            for _ in range(rng.randrange(1, 4))
        )  # fmt: skip
        assert parse(render(calls, format, tools), tools, format) == Parsed("", calls), render(calls, format, tools)


def test_cutting_a_call_anywhere_never_changes_its_arguments():
    """Whatever prefix of a call stands between the tags, it is read as the whole call or not at all."""
    whole = '{"name": "add", "arguments": {"a": "one", "b": [2, {"c": "x, y"}], "d": true}}'
    read = [c for i in range(len(whole)) for c in parse(f"{OPEN}{whole[:i]}{C}", TOOLS, "hermes").calls]
    kept = [c.arguments for c in read]
    assert all(c.repaired for c in read) and {"a": "one", "b": [2, {"c": "x, y"}], "d": True} in kept
    for arguments in kept:  # after a complete value a bracket may be missing; that value is whole
        assert arguments.get("a", "one") == "one" and arguments.get("d", True) is True


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ('{"a": 1', '{"a": 1}'),
        ('{"a": [1, 2', '{"a": [1, 2]}'),
        ('{"a": "x\ny"}', '{"a": "x\\ny"}'),
        ('{"a": 1,}', '{"a": 1}'),
        ('{"a": ",}"}', None),
        ('{"a": 1}', None),
        ('{"a": 1,', None),
        ('{"a":', None),
        ('{"a": "x', None),
        ('{"a": 1]', None),
        ('{"a": 1}}', None),
        ('{"a": "x\\\ny"}', None),
        ("[" * 200, None),
    ],
)
def test_one_repair_that_loses_nothing(text, mended):
    assert repaired_json(text) == mended
    assert ends_inside('{"a": "\\""') and not ends_inside('{"a": "{"}') and ends_inside("['", python=True)


def test_the_format_of_a_model_is_in_its_chat_template():
    known = {f.stem: format_of(f.read_text()) for f in TEMPLATES.glob("*.jinja")}
    assert known["qwen2_5"] == known["qwen3"] == "hermes" and known["smollm2"] == "" and known["llama3"] == ""
    assert format_of('{{ "parameters" }} ipython: {"name": x, "parameters": y}') == "llama"
    assert format_of("[func_name1(params_name1=params_value1)]") == "python"
    assert format_of("<tool_call><function=name><parameter=x>") == ""  # another form between the same tags
    assert format_of(None) == "" == format_of("{{ tools }}")


@pytest.mark.parametrize("format", FORMATS)
def test_a_description_names_every_tool_and_its_own_example_parses(format):
    told = described([t.schema for t in OFFERED], format)
    assert all(f'"name": "{t.name}"' in told for t in OFFERED) and "words" in told
    with pytest.raises(UserError, match="format"):
        described([], "auto")
