"""An OpenAI-compatible server in a thread that answers as a test says, with faults on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any

from posttrain.policies.chat_api import ChatAPI

Answer = Callable[[dict[str, Any]], Any]  # request -> a text, a (status, body), or a whole body


class Fake:
    """`answer` gives each reply; `plan` comes first: (status, body) or a body for each of the next requests."""

    def __init__(self, answer: Answer, *plan: Any, models: tuple[str, ...] = ("fake",)) -> None:
        self.answer, self.plan, self.models = answer, list(plan), models
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.lock = Lock()

    def reply(self, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any]:
        with self.lock:
            self.asked.append(body)
            self.headers.append(headers)
            told = self.plan.pop(0) if self.plan else self.answer(body)
        if isinstance(told, tuple):
            return told
        return 200, completion(told) if isinstance(told, str) else told

    @contextmanager
    def listening(self) -> Iterator[str]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send(200, {"data": [{"id": m} for m in fake.models]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send(*fake.reply(body, dict(self.headers)))

            def send(self, status: int, body: Any) -> None:
                said = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def completion(text: str | None, stop: str = "stop", tokens: int = 3) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": stop}
    return {"choices": [choice], "usage": {"completion_tokens": tokens, "prompt_tokens": 5}}


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def api(self, url: str, **params: Any) -> ChatAPI:
        return ChatAPI(url, **({"model": "fake", "concurrency": 1} | params), sleep=self.sleep, clock=lambda: self.now)
