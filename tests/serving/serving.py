"""A server of the built-in model to test, and a client for it."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

import pytest

from posttrain.serving.server import Server
from posttrain.serving.service import Service

SUM = "What is 12+7? Think first."
SAM = "Sam has 3 apples and buys 4 more. How many apples does Sam have? Think first."


def start(service: Service, **how: Any) -> Server:
    return Server(service, port=0, **how).start()


def call(server: Server, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """(status, JSON) of one request; a body is POSTed."""
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    link.request("GET" if body is None else "POST", path, raw, headers or {})
    answer = link.getresponse()
    status, text = answer.status, answer.read()
    link.close()
    return status, json.loads(text)


def chat(server: Server, text: str = SUM, **more: Any) -> dict[str, Any]:
    status, answer = call(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})
    assert status == 200, answer
    return answer


def said(answer: dict[str, Any]) -> list[str]:
    return [c["message"]["content"] for c in answer["choices"]]


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    link.request("POST", path, json.dumps(body | {"stream": True}).encode())
    answer = link.getresponse()
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream"
    lines = [line for line in answer.read().decode().split("\n\n") if line]
    link.close()
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def slow(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    """Make the engine slow: 50 ms per step."""
    engine = service.queue.backend.engine
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda: (time.sleep(0.05), step())[1])
