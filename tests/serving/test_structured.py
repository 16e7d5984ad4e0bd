"""Structured answers: JSON that the schema accepts, from a model that knows no JSON, in both backends; clear errors otherwise."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from posttrain.serving.backends import PlainBackend
from posttrain.serving.queue import Queue
from posttrain.serving.server import Server
from posttrain.serving.service import Service
from posttrain.serving.structured import GrammarConstraint, Grammars
from tests.serving.serving import SUM, call, events, start

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
        "boss": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags", "boss"],
    "additionalProperties": False,
}


def ask(schema: dict[str, Any] | None = PERSON, **more: Any) -> dict[str, Any]:
    form = (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}} if schema else {"type": "json_object"}
    )
    return {"messages": [{"role": "user", "content": SUM}], "response_format": form, "max_tokens": 160, **more}


def is_person(text: str) -> bool:
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "tags", "boss"]
        and isinstance(found["name"], str)
        and len(found["name"]) <= 6
        and type(found["age"]) is int
        and 0 <= found["age"] <= 120
        and len(found["tags"]) <= 2
        and set(found["tags"]) <= {"a", "b"}
        and found["boss"] in (None, True, False)
    )


@pytest.mark.parametrize("seed", [0, 1])
def test_answers_validate(server: Server, seed: int) -> None:
    """Eight answers per seed at temperature 1; one that does not end in time says so."""
    status, answer = call(server, "/v1/chat/completions", ask(n=8, seed=seed, logprobs=True))
    assert status == 200, answer
    ended = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    assert len(ended) >= 4 and all(is_person(c["message"]["content"]) for c in ended)
    assert len({c["message"]["content"] for c in ended}) > 1
    for choice in answer["choices"]:
        first = choice["logprobs"]["content"][0]  # nothing else may begin an object: probability 1
        assert first["token"] == "{" and first["logprob"] == pytest.approx(0, abs=1e-5)


def test_any_object(server: Server) -> None:
    answer = call(server, "/v1/chat/completions", ask(None, n=4, seed=3))[1]
    ended = [c for c in answer["choices"] if c["finish_reason"] == "stop"]
    assert ended and all(isinstance(json.loads(c["message"]["content"]), dict) for c in ended)


def test_cut_off_is_said(server: Server) -> None:
    choice = call(server, "/v1/chat/completions", ask(max_tokens=3))[1]["choices"][0]
    assert choice["finish_reason"] == "length" and choice["message"]["content"].startswith("{")


def test_both_backends_give_the_same(policy: Any, server: Server) -> None:
    """The path through transformers, with a model that the native engine has too; streamed, it is told as it comes."""
    service = Service(policy, "pocket")
    service.queue.close()
    service.queue = Queue(policy)
    service.queue.backend = PlainBackend(policy)
    service.queue.start()
    other = start(service)
    body = ask({"enum": ["yes, it is", "no"]}, n=3, seed=5, logprobs=True, return_token_ids=True, max_tokens=60)
    try:
        want = call(server, "/v1/chat/completions", body)[1]["choices"]
        got = call(other, "/v1/chat/completions", body)[1]["choices"]
        assert [c["token_ids"] for c in got] == [c["token_ids"] for c in want]
        assert {c["message"]["content"] for c in got} <= {'"yes, it is"', '"no"'}
        for a, b in zip(got, want, strict=True):
            pairs = zip(a["logprobs"]["content"], b["logprobs"]["content"], strict=True)
            assert all(x["logprob"] == pytest.approx(y["logprob"], abs=1e-4) for x, y in pairs)
        for one in (other, server):
            chunks = [c for p in events(one, "/v1/chat/completions", body) for c in p["choices"]]
            for choice in want:
                mine = [c for c in chunks if c["index"] == choice["index"]]
                assert "".join(c["delta"].get("content", "") for c in mine) == choice["message"]["content"]
                assert [t for c in mine for t in c.get("token_ids", [])] == choice["token_ids"]
    finally:
        other.stop()
        service.close()


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("json", "response_format is 'json'; expected {type: 'text'}"),
        ({"type": "xml"}, "expected {type: 'text'}"),
        ({"type": "json_schema"}, "{type: 'json_schema', json_schema: {name, schema}}"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}, "to this schema: Invalid type: foo"),
        ({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, 'Unimplemented keys: ["not"]'),
        ({"type": "json_schema", "json_schema": {"schema": {"$ref": "http://x/y"}}}, "to this schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": []}}}, "to this schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"minimum": -(10**400)}}}, "to this schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"const": "\ud800"}}}, "to this schema"),
        ({"type": "json_schema", "json_schema": {"schema": {"title": "x" * 65_000}}}, "at most 64,000 are read"),
    ],
)  # fmt: skip
def test_mistakes(server: Server, form: Any, words: str) -> None:
    status, answer = call(server, "/v1/chat/completions", ask() | {"response_format": form})
    assert status == 400 and words in answer["error"]["message"] and answer["error"]["param"] == "response_format"


def test_without_the_library(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    status, answer = call(server, "/v1/chat/completions", ask())
    assert status == 400 and answer["error"]["message"].endswith('install it: pip install "posttrain[structured]"')
    assert (
        call(server, "/v1/chat/completions", ask() | {"response_format": {"type": "text"}, "max_tokens": 1})[0] == 200
    )


def test_an_answer_that_the_library_gives_up_on(server: Server, policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token that the grammar does not allow stands for any failure of the library: the answer is ended and the client told."""
    made = Grammars(policy, 512).of_schema({"type": "object"}).constraint()
    made.accept(policy.tokenizer("9", add_special_tokens=False)["input_ids"][0])
    row = np.zeros(16, dtype=np.int32)
    made.fill(row)
    assert made.error and [i for i in range(512) if row[i // 32] >> (i % 32) & 1] == policy.stop_ids

    class Panics:
        """A library that panics: pyo3's exception for that is no Exception."""

        def __getattr__(self, name: str) -> Any:
            raise SystemExit(name)

    made = GrammarConstraint(Panics(), [3])
    made.accept(5)
    assert made.error == "SystemExit: consume_token"
    made = GrammarConstraint(Panics(), [3])
    made.fill(row := np.zeros(16, dtype=np.int32))
    assert made.error == "SystemExit: compute_bitmask" and row.tolist() == [8] + [0] * 15
    whole = GrammarConstraint.accept

    def fails(self: GrammarConstraint, token: int) -> None:
        whole(self, token if self.accepted < 2 else 0)

    monkeypatch.setattr(GrammarConstraint, "accept", fails)
    status, answer = call(server, "/v1/chat/completions", ask(seed=1))
    assert status == 400 and "could not be held to its form" in answer["error"]["message"]
