"""Hostile requests to `posttrain serve`: whatever is sent, the answer is a 4xx with one sentence, and other clients go on.

`fuzz_http(seed, tries)` returns the failures; `python -m tests.fuzz.http SEED TRIES` prints them.
"""

from __future__ import annotations

import json
import random
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from posttrain.policies.load import load_model
from posttrain.serving import server as server_file
from posttrain.serving.server import Server
from posttrain.serving.service import Service

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASK = {"messages": [{"role": "user", "content": "What is 2+3? Answer only."}], "temperature": 0, "max_tokens": 8}
FIELDS = ("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop", "stream", "stream_options",
          "logprobs", "return_token_ids", "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice",
          "parallel_tool_calls", "response_format", "prompt", "user", "frequency_penalty", "logit_bias", "echo", "best_of",
          "suffix", "temprature")  # fmt: skip
NUMERIC = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "logprobs", "best_of")
NUMBERS = ("0", "-0", "-1", "1", "2", "0.5", "1e-300", "1e308", "-1e308", "1e400", "9" * 400, "-" + "9" * 400, "9" * 4301,
           str(2**31), str(2**53), str(2**63), str(2**64), "NaN", "Infinity", "-Infinity", "1e-46", "0.00001")  # fmt: skip
TEXTS = ("", " ", "pocket", "user", "system", "tool", "required", "auto", "text", "json_object", "json_schema", "function", "\x00",
         "\x1b[2J", "\u202e", "\ufeff", "é" * 50, "数" * 50, "🙂", "a" * 3000, "a" * 70_000, "{{ 7*7 }}", "{% raise %}",
         "<|end|>", "<|user|>", "<tool_call>", "../../etc/passwd", "%s%n", "' OR 1=1")  # fmt: skip
PLACES = ("/", "/health", "/v1", "/v1/models", "/v1/models/", "/v1/models/x", TEXT, CHAT, TEXT + "/", "/v1//completions", "//",
          "/v1/models/%00", "/v1/models/%ff%fe", "/%1b[2J", "/v1/completions?x=1", "*", "http://evil.example/v1/models",
          "/" + "a" * 9_000, "/" + "%41" * 2_000, "/..", "/v1/../health")  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "BREW", "get", "PRI")
HEADERS = (
    "Content-Length: 0", "Content-Length: -1", "Content-Length: " + "9" * 5000, "Content-Length: 1e3", "Content-Length: 5, 5",
    "Content-Length: 99999999999", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip", "Transfer-Encoding: chunked, chunked",
    "Host: evil.example", "Host: [", "Host: localhost:99999999", "Host: ", "Origin: null", "Origin: http://evil.example",
    "Sec-Fetch-Site: cross-site", "Authorization: Bearer \xff", "Authorization: Basic eDp5", "Expect: 100-continue",
    "Connection: upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x", "Upgrade: h2c", "Connection: close", "X: " + "y" * 70_000,
    "X-\x00: 1", "No colon", ": empty", " folded: 1", "Content-Type: multipart/form-data; boundary=x", "Content-Encoding: gzip",
    "Range: bytes=0-", "Cookie: a=b", "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: evil.example",
)  # fmt: skip


def fuzz_http(seed: int, tries: int) -> list[str]:
    """Send hostile requests to a server of the built-in model; every one that was not refused in the right way is a failure."""
    failures: list[str] = []
    with serving() as server:
        want = honest(server)
        for i in range(tries):
            rng = random.Random(f"{seed}/{i}")
            kind, make = rng.choice(KINDS)
            sent, end = make(rng)
            told = exchange(server, sent, end)
            problem = judge(told)
            if i % 20 == 19 and problem is None and honest(server) != want:
                problem = "another client's answer changed"
            if problem:
                failures.append(f"seed {seed} try {i} ({kind}): {problem}; sent {sent[:200]!r}; got {told[:200]!r}")
        if not server.service.queue.is_alive() or honest(server) != want:
            failures.append(f"seed {seed}: the server does not answer any more")
    return failures


@contextmanager
def serving() -> Iterator[Server]:
    service = Service(load_model("pocket", "cpu"), "pocket", max_queued=32)
    server, seconds = Server(service, port=0).start(), server_file.REQUEST_SECONDS
    server_file.REQUEST_SECONDS = 0.1  # half of a request is soon refused
    try:
        yield server
    finally:
        server_file.REQUEST_SECONDS = seconds
        server.stop()
        service.close()


def honest(server: Server) -> str:
    """What a client with a proper request gets."""
    told = exchange(server, post(CHAT, json.dumps(ASK).encode()), False)
    status, _, body = told.partition(b"\r\n\r\n")
    assert status.startswith(b"HTTP/1.1 200"), told[:300]
    return str(json.loads(body)["choices"][0]["message"]["content"])


def exchange(server: Server, sent: bytes, end: bool) -> bytes:
    """Everything the server says to these bytes; `end`: the client ends its side, as one that hangs up."""
    told = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        try:
            link.sendall(sent)
            if end:
                link.shutdown(socket.SHUT_WR)
            while not complete(told, sent) and (part := link.recv(1 << 16)):
                told += part
        except (ConnectionResetError, BrokenPipeError):
            pass
        except TimeoutError:
            told = told or b"TIMEOUT"
    return told


def complete(told: bytes, sent: bytes) -> bool:
    """Whether a whole reply has come, on a connection that stays open."""
    head, gap, body = told.partition(b"\r\n\r\n")
    if not gap or head.startswith(b"HTTP/1.1 100"):
        return False
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length: "):
            return sent.startswith(b"HEAD") or len(body) >= int(line[16:])
    return body.endswith(b"0\r\n\r\n")


def judge(told: bytes) -> str | None:
    """What is wrong with a reply: none is needed where the client has gone or sent no whole request."""
    if told == b"TIMEOUT":
        return "no answer and no end"
    if not told:
        return None
    status = told.split(b" ", 2)[1][:3]
    if status == b"500" or status not in STATUSES:
        return f"status {status.decode('latin-1')}"
    if status[:1] == b"4" and b"Traceback" in told:
        return "a stack trace"
    body = told.partition(b"\r\n\r\n")[2]
    if status[:1] == b"4" and body.startswith(b"{"):
        message = json.JSONDecoder().raw_decode(body.decode())[0]["error"][
            "message"
        ]  # the reply to the next may follow
        if not message or len(message) > 700 or "\n" in message:
            return f"no sentence: {message[:200]!r}"
    return None


STATUSES = {b"200", b"400", b"401", b"403", b"404", b"405", b"408", b"411", b"413", b"417", b"431", b"501", b"503"}


# ---- requests


def post(path: str, body: bytes, *headers: str) -> bytes:
    length = [f"Content-Length: {len(body)}"] if not any("content-length" in h.lower() for h in headers) else []
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", *length, *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def fields(rng: random.Random) -> tuple[bytes, bool]:
    """A proper request in which some fields are anything."""
    chat = rng.random() < 0.6
    body: dict[str, Any] = dict(ASK if chat else {"prompt": "a", "max_tokens": 2})
    text = json.dumps(body)[:-1]
    for _ in range(rng.randint(1, 3)):
        text += f", {json.dumps(rng.choice(FIELDS))}: {anything(rng, 3)}"
    return post(CHAT if chat else TEXT, (text + "}").encode("utf-8", "surrogatepass")), False


def numbers(rng: random.Random) -> tuple[bytes, bool]:
    """A proper request in which one number is any number."""
    text = json.dumps({"prompt": "a", "max_tokens": 2})[:-1] + f', "{rng.choice(NUMERIC)}": {rng.choice(NUMBERS)}}}'
    return post(TEXT, text.encode()), False


def anything(rng: random.Random, depth: int) -> str:
    """Any JSON, and some that is not."""
    kind = rng.randint(0, 9 if depth else 5)
    if kind <= 2:
        return rng.choice(NUMBERS)
    if kind <= 4:
        return json.dumps(rng.choice(TEXTS)) if rng.random() < 0.9 else '"\\ud800"'
    if kind == 5:
        return rng.choice(("true", "false", "null", "[]", "{}", "tru", "'x'", "[" * 500 + "]" * 500, "[" * 3000))
    some = [anything(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 3, 40)))]
    if kind <= 7:
        return "[" + ",".join(some) + "]"
    names = ("role", "content", "type", "function", "name", "parameters", "json_schema", "schema", "text", "include_usage",
             "tool_calls", "arguments", "enum", "properties", "pattern", "$ref", "x")  # fmt: skip
    return "{" + ",".join(f'"{rng.choice(names)}": {x}' for x in some) + "}"


def broken(rng: random.Random) -> tuple[bytes, bool]:
    """The bytes of a proper request, some of them changed, cut, doubled, or ended early by the client."""
    sent = bytearray(post(CHAT, json.dumps(ASK).encode()))
    for _ in range(rng.randint(0, 6)):
        sent[rng.randrange(len(sent))] = rng.randrange(256)
    cut = rng.randrange(1, len(sent) + 1)
    whole = rng.random() < 0.3
    return (bytes(sent) + b"\r\n\r\n" * 3 if whole else bytes(sent[:cut])), rng.random() < 0.3


def heads(rng: random.Random) -> tuple[bytes, bool]:
    """Any method, address and headers."""
    body = rng.choice(
        (b"", b"{}", b"{", json.dumps(ASK).encode(), b"\xff\xfe", b"0\r\n\r\n", b"5\r\n{}   \r\n0\r\n\r\n", b"zz\r\n")
    )
    lines = [f"{rng.choice(METHODS)} {rng.choice(PLACES)} HTTP/{rng.choice(('1.1', '1.1', '1.0', '2.0', '9'))}"]
    lines += ["Host: localhost"] * rng.choice((1, 1, 1, 0, 2)) + rng.sample(HEADERS, rng.randint(0, 3))
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body, rng.random() < 0.1


def schemas(rng: random.Random) -> tuple[bytes, bool]:
    """Answers of a form that makes no sense, or too much of it."""
    schema = rng.choice((
        anything(rng, 3), '{"enum": [1, "a", null]}', '{"type": "string", "pattern": "(a|b)*c{1,999}$"}',
        '{"type": "string", "pattern": "("}', '{"$ref": "#"}', '{"anyOf": [{"$ref": "#"}]}', '{"type": "array", "minItems": 1e9}',
        '{"type": "integer", "multipleOf": 1e-300}', '{"allOf": [{"type": "string"}, {"type": "integer"}]}',
        '{"properties": {"\\u0000": {}}, "required": ["\\u0000"], "type": "object"}',
    ))  # fmt: skip
    form = f'{{"type": "json_schema", "json_schema": {{"name": "x", "schema": {schema}}}}}'
    text = json.dumps(ASK | {"max_tokens": 4})[:-1] + f', "temperature": 1, "response_format": {form}}}'
    return post(CHAT, text.encode("utf-8", "surrogatepass")), False


def noise(rng: random.Random) -> tuple[bytes, bool]:
    return rng.randbytes(rng.choice((1, 10, 1000, 100_000))), False


KINDS: tuple[tuple[str, Callable[[random.Random], tuple[bytes, bool]]], ...] = (
    ("fields", fields), ("fields", fields), ("numbers", numbers), ("numbers", numbers), ("broken", broken), ("heads", heads), ("schemas", schemas), ("noise", noise),
)  # fmt: skip

if __name__ == "__main__":
    found = fuzz_http(int(sys.argv[1]), int(sys.argv[2]))
    print("\n".join(found) or "no failures")
    sys.exit(bool(found))
