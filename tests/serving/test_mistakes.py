"""The server and mistakes: errors in OpenAI's shape, limits of fields and bodies, keys."""

from __future__ import annotations

import http.client
import re
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.serving.app import loopback
from posttrain.serving.limits import ApiError
from posttrain.serving.openai import parse_request
from posttrain.serving.queue import Queue
from posttrain.serving.request import Request
from posttrain.serving.server import Server
from tests.serving.serving import call, start


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", [1], 400, "expected an object"),
        ("/v1/chat/completions", {"temperature": 0}, 400, "messages is missing; expected a list of {role, content}"),
        ("/v1/chat/completions", {"messages": [], "temperature": 0}, 400, "messages is empty"),
        ("/v1/chat/completions", {"messages": "hi"}, 400, "messages is 'hi'"),
        ("/v1/chat/completions", {"messages": [{"role": "usr", "content": ""}]}, 400, "expected one of system"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}, 400, "must be a string"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "text": "?"}]}]},
            400,
            "text parts",
        ),
        ("/v1/completions", {"prompt": "a", "temprature": 1}, 400, "did you mean 'temperature'?"),
        ("/v1/completions", {"prompt": "a", "tools": [{}]}, 400, "tools is not supported"),
        (
            "/v1/completions",
            {"prompt": "a", "top_k": 2**63},
            400,
            "top_k is 9223372036854775808; expected a whole number",
        ),
        ("/v1/completions", {"prompt": "a", "temperature": 10**400}, 400, "expected a number"),
        ("/v1/completions", {"prompt": "a", "temperature": 1e300}, 400, "temperature is 1e+300; expected 0 to 100"),
        ("/v1/completions", {"prompt": "a", "n": 10**6}, 400, "1,000,000 answers in one request"),
        ("/v1/completions", {"prompt": "a", "seed": 2**63}, 400, "seed is 9223372036854775808"),
        ("/v1/completions", {"prompt": ["a"] * 50_000}, 400, "50,000 answers in one request"),
        ("/v1/completions", {"prompt": "a" * 40_000}, 400, "room for 1,024 tokens, so at most 32,768 are read"),
        ("/v1/completions", {"prompt": [1] * 40_000}, 400, "a prompt of 40,000 characters"),
        ("/v1/completions", {"prompt": "a", "x" * 100_000: 1}, 400, "no field named"),
        ("/v1/completions", {"prompt": "a", "model": "x" * 100_000}, 404, "no model named"),
        ("/v1/completions", {"prompt": "a", "stop": ["x"] * 17}, 400, "at most 16 strings"),
        ("/v1/completions", {"prompt": "a", "suffix": ["x" * 9] * 9_999}, 400, "suffix is not supported"),
        ("/v1/completions", b'{"prompt": "\\ud800"}', 400, "cannot be written for this model"),
        ("/v1/completions", b'{"prompt": ' + b"[" * 5_000, 400, "not JSON"),
        ("/v1/completions", b'{"seed": ' + b"9" * 5_000 + b"}", 400, "not JSON"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": ""}] * 2_000}, 400, "2,000 messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 40_000}]}, 400, "so at most 32,768"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens is 0"),
        ("/v1/completions", {"prompt": "a", "max_tokens": True}, 400, "expected a whole number"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature is -1.0"),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}, 400, "expected a number"),
        ("/v1/completions", b'{"prompt": "a", "top_p": NaN}', 400, "expected a number"),
        ("/v1/completions", {"prompt": "a", "top_p": 0}, 400, "top_p must be"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, 400, "none of them empty"),
        ("/v1/completions", {"prompt": "a", "logprobs": 3}, 400, "only 0 is supported"),
        ("/v1/completions", {"prompt": [99999]}, 400, "each from 0 to 511"),
        ("/v1/completions", {"prompt": ""}, 400, "at least one token"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "room for 1024"),
        ("/v1/completions", {"prompt": "a", "model": "poket"}, 404, "did you mean 'pocket'?"),
        ("/v1/chat/completion", {}, 404, "did you mean /v1/chat/completions?"),
        ("/v1/models", {}, 405, "asked with GET"),
        ("/v1/completions", None, 405, "asked with POST"),
        ("/v1/models/none", None, 404, "no model named 'none'"),
    ],
)
def test_mistakes(server: Server, path: str, body: Any, status: int, words: str) -> None:
    got, answer = call(server, path, body)
    assert got == status and words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_fields_in_their_less_common_forms() -> None:
    system = parse_request({"messages": [{"role": "developer", "content": "x"}]}, "chat").messages
    assert system == ({"role": "system", "content": "x"},)  # what templates know
    parts = [{"type": "text", "text": "a"}, {"text": "b"}]
    assert parse_request({"messages": [{"role": "user", "content": parts}]}, "chat").messages[0]["content"] == "ab"
    assert (
        parse_request({"prompt": "a", "temperature": 1e-6}, "text").how.temperature == 0
    )  # dividing by it would overflow
    assert parse_request({"messages": SAID, "max_tokens": 3, "max_completion_tokens": 3}, "chat").max_tokens == 3
    assert parse_request({"prompt": "a", "top_k": -1}, "text").how.top_k == 0


CALL = {"type": "function", "function": {"name": "f", "arguments": {"x": "a" * 40_000}}}
SAID = [{"role": "user", "content": "?"}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            {"messages": SAID, "max_tokens": 3, "max_completion_tokens": 4},
            "max_tokens is 3 and max_completion_tokens 4; give one",
        ),
        ({"messages": SAID, "stop": "x" * 1_001}, "at most 16 strings of 1,000 characters"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
            "room for 1,024 tokens, so at most 32,768 are read",
        ),
        ({"messages": SAID, "n": 257}, "this server makes at most 256"),
        ({"messages": SAID, "top_k": 1_000_001}, "expected a whole number of at most 1,000,000"),
        ({"messages": SAID, "seed": -(2**63) - 1}, "expected a whole number"),
        ({"messages": SAID, "logprobs": 1}, "expected true or false"),
        ({"messages": SAID, "stream_options": {"include_usage": 1}}, "include_usage is 1; expected true or false"),
    ],
)
def test_limits_of_fields(body: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError, match=re.escape(words)):
        parse_request(body, "chat")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1),
        ("temperature", 5e-4),
        ("temperature", 101),
        ("top_p", 2),
        ("n", 0),
        ("seed", "a"),
        ("stop", ""),
    ],
)
def test_the_field_that_is_wrong_is_named(name: str, value: Any) -> None:
    with pytest.raises(ApiError) as raised:
        parse_request({"prompt": "a", name: value}, "text")
    assert raised.value.param == name


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_body_is_refused_and_thrown_away(server: Server, chunked: bool) -> None:
    """8 MB; the client gets the reply, not a reset, and the connection can be used again."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = b'{"prompt": "' + b"a" * (8 << 20) + b'"}'
    link.request("POST", "/v1/completions", iter([body]) if chunked else body)
    answer = link.getresponse()
    assert answer.status == 413 and b"more than 2,097,152 bytes" in answer.read()
    link.request("GET", "/health")
    assert link.getresponse().status == 200
    link.close()


def test_models_and_health(server: Server) -> None:
    assert call(server, "/health") == (200, {"status": "ok", "answers": 0})
    listed = call(server, "/v1/models")[1]["data"]
    assert [m["id"] for m in listed] == ["pocket"] and call(server, "/v1/models/pocket")[1] == listed[0]


def test_connections_are_kept(server: Server) -> None:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for body in (b"{", b'{"prompt": "a", "max_tokens": 1}', b"{}"):
        link.request("POST", "/v1/completions", body)
        answer = link.getresponse()
        assert answer.status == (200 if b"prompt" in body else 400) and answer.read()
    link.close()


def test_only_loopback_without_a_key(server: Server) -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        assert not loopback(host)
        with pytest.raises(UserError, match="--api-key"):
            Server(server.service, host, 0)
    assert all(map(loopback, ("127.0.0.1", "localhost", "::1", "127.1.2.3")))
    status, told = call(server, "/v1/models", headers={"Host": "evil.example:8000"})  # a web page under another name
    assert status == 403 and "localhost only" in told["error"]["message"]


def test_a_key_is_asked_for(server: Server) -> None:
    keyed = start(server.service, key="s3crét")
    try:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cre"}):
            status, told = call(keyed, "/v1/models", headers=headers)
            assert status == 401 and told["error"]["code"] == "invalid_api_key"
        good = {"Authorization": "Bearer s3crét".encode().decode("latin-1")}  # the bytes of its UTF-8
        assert call(keyed, "/v1/models", headers=good | {"Host": "other.example"})[0] == 200
        assert call(keyed, "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 401
        assert call(keyed, "/v1/completions", {"prompt": "a", "max_tokens": 1}, good)[0] == 200
        assert call(keyed, "/health")[0] == 200
    finally:
        keyed.stop()


def test_a_port_that_is_taken_is_a_sentence(server: Server) -> None:
    with pytest.raises(UserError, match="use another --port"):
        Server(server.service, port=server.port)


def test_closing_twice_and_submitting_after(policy: Any) -> None:
    queue = Queue(policy)
    queue.start()
    queue.close()
    queue.close()
    with pytest.raises(Exception, match="it was stopped"):
        queue.submit(Request([]))
