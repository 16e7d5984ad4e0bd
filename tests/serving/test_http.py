"""The HTTP surface: who may ask, what is read before that is known, clients that are slow on purpose, the log, the end."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.serving import server as server_file
from posttrain.serving.server import Server, require_key
from posttrain.serving.service import Service
from tests.serving.serving import SUM, call, chat, events, said, slow, start

PAGE = "https://page.example"


@pytest.fixture(scope="module")
def guarded(server: Server) -> Iterator[tuple[Server, list[str]]]:
    """A server with a key, one allowed origin, and a log, over the same service."""
    lines: list[str] = []
    made = start(server.service, key="s3cret", origins=[PAGE], log=lines.append)
    yield made, lines
    made.stop()


def raw(server: Server, *parts: bytes, close: bool = False) -> bytes:
    """Everything that the server says to these bytes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as link:
        for part in parts:
            link.sendall(part)
        if close:
            link.shutdown(socket.SHUT_WR)
        said = b""
        try:
            while part := link.recv(65536):
                said += part
        except ConnectionResetError:
            pass
        return said


# ---- who may ask


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/v1/completions"])
def test_web_pages_may_not_ask(server: Server, path: str) -> None:
    body = {"prompt": "a", "max_tokens": 1} if "completions" in path else None
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        status, told = call(server, path, body, headers)
        assert status == 403 and "--allow-origin" in told["error"]["message"]
    assert call(server, path, body, {"Sec-Fetch-Site": "none"})[0] == 200  # typed into the address bar


def test_allowed_pages_may(guarded: tuple[Server, list[str]]) -> None:
    server, key = guarded[0], {"Authorization": "Bearer s3cret"}
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    link.request("GET", "/v1/models", headers=key | {"Origin": PAGE, "Sec-Fetch-Site": "cross-site"})
    answer = link.getresponse()
    assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == PAGE and answer.read()
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    link.request("OPTIONS", "/v1/chat/completions", headers={"Origin": PAGE} | ask)
    answer = link.getresponse()
    assert answer.status == 200 and answer.headers["Access-Control-Allow-Origin"] == PAGE and answer.read()
    link.close()
    assert call(server, "/v1/models", headers=key | {"Origin": "https://evil.example"})[0] == 403


def test_any_page_needs_a_key() -> None:
    require_key("127.0.0.1", "key", ["*"])
    with pytest.raises(UserError, match="lets any web page use this server"):
        require_key("127.0.0.1", "", ["*"])


def test_the_key_is_checked_before_the_body_is_read(guarded: tuple[Server, list[str]]) -> None:
    """The head of a request announces a body that never comes; the answer does."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", guarded[0].port), timeout=20) as link:
        link.sendall(head)
        assert link.recv(65536).startswith(b"HTTP/1.1 401 ")


# ---- requests that are not HTTP


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"400"),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999\r\nConnection: close\r\n\r\n",
            b"413",
        ),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"400"),
        (b"GET /v1/models HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n", b"403"),
        (b"GET /v1/models HTTP/1.1\r\nHost: evil.example:8000\r\nConnection: close\r\n\r\n", b"403"),
        (b"\x16\x03\x01\x02\x00", b"400"),  # TLS
        (b"GET " + b"/" * 100_000, b"400"),
        (b"\x00\r\n\r\n", b"400"),
        (b"BREW /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"405"),
        (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
    ],
)
def test_not_http(server: Server, request_: bytes, status: bytes) -> None:
    told = raw(server, request_)
    assert told.startswith(b"HTTP/1.1 " + status) and told.count(b"HTTP/1.1") == 1


def test_half_of_a_request_and_then_nothing(server: Server) -> None:
    """The client has ended its side: nothing is answered to half a request, and the connection is closed."""
    assert (
        raw(server, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{", close=True)
        == b""
    )
    assert server.service.queue.load == 0


@pytest.mark.parametrize(
    "sent", [b"GET /hea", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_request_must_come_in_time(server: Server, monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(server_file, "REQUEST_SECONDS", 0.2)
    assert raw(server, sent).startswith(b"HTTP/1.1 408 ")
    first = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"  # the second request of a connection, too
    told = raw(server, first + sent)
    assert told.startswith(b"HTTP/1.1 200 ") and b"HTTP/1.1 408 " in told and b"not complete in time" in told


def test_a_reply_must_be_taken_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks and never reads: once its buffers are full it is cut off, and its answers with it."""
    monkeypatch.setattr(server_file, "READ_SECONDS", 0.2)
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections take it over
    long = [{"role": "user", "content": "1 2 3 4 " * 50}]  # its ids are in the first chunk of each of 200 answers
    ask = {"messages": long, "n": 200, "max_tokens": 600, "temperature": 9, "stream": True, "return_token_ids": True}
    body = json.dumps(ask).encode()
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.connect(("127.0.0.1", server.port))
        link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body))
        link.sendall(body)
        wait_for(lambda: server.service.queue.load > 0)
        wait_for(lambda: server.service.queue.load == 0)


def wait_for(true: Any, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


# ---- others do not notice


def test_refused_requests_cost_running_streams_nothing(server: Server) -> None:
    """What used to fail or stall others, all of it at once beside a stream: the stream's text is what it is alone."""
    bad = [{"prompt": "a", "top_k": 2**63}, {"prompt": "a", "n": 10**6}, {"prompt": "x" * 1_900_000},
           {"prompt": ["a"] * 50_000}, {"prompt": "a", "temperature": 10**400}, {"prompt": [[1] * 9] * 9_000}]  # fmt: skip
    body = {"messages": [{"role": "user", "content": SUM}], "temperature": 0, "max_tokens": 60}
    want = said(chat(server, temperature=0, max_tokens=60))[0]
    got: list[str] = []
    stream = threading.Thread(
        target=lambda: got.append(
            "".join(
                c["delta"].get("content", "")
                for p in events(server, "/v1/chat/completions", body)
                for c in p["choices"]
            )
        )
    )
    stream.start()
    before = time.process_time()
    assert [call(server, "/v1/completions", b)[0] for b in bad] == [400] * len(bad)
    assert time.process_time() - before < 10
    stream.join()
    assert got == [want]


# ---- the log and the end


def test_the_log_cannot_act_on_the_terminal(guarded: tuple[Server, list[str]]) -> None:
    server, lines = guarded
    lines.clear()
    for path in ("/%1b[2J%0aPOST%20/x", "/%9b31m", "/ok"):
        call(server, path)
    wait_for(lambda: len(lines) == 3)
    assert lines[0].startswith("GET /\\x1b[2J\\nPOST /x 401 ") and lines[0].isascii() and lines[0].isprintable()
    assert lines[1].isprintable() and lines[2].startswith("GET /ok 401 0.0")


def test_the_end_is_graceful(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer in progress is finished; one that would take too long ends with a 503, and a new one is not begun."""
    service = Service(policy, "pocket")
    server = start(service)
    slow(monkeypatch, service)
    monkeypatch.setattr(server_file, "GRACE_SECONDS", 1.5)
    results: dict[str, Any] = {}

    def ask(name: str, tokens: int) -> None:
        body = {"prompt": "<|user|>", "max_tokens": tokens, "temperature": 9, "seed": 1}
        results[name] = call(server, "/v1/completions", body)[0]

    threads = [threading.Thread(target=ask, args=job) for job in (("short", 5), ("long", 900))]
    for thread in threads:
        thread.start()
    wait_for(lambda: service.queue.load == 2)
    server.stop()
    for thread in threads:
        thread.join()
    service.close()
    assert results == {"short": 200, "long": 503}
