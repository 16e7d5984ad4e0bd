"""Services on this machine, in a thread: one that scores, the other side of `http_scorer`, with faults on purpose; and one that chats,
a program in place of a served model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Reply = tuple[int, Any]  # status, what the body says


@contextmanager
def serving(answer: Callable[[list[dict[str, str]], dict[str, str]], Reply]) -> Iterator[str]:
    """Answers POST requests with answer(items, headers) -> (status, body) on a free port; gives its address."""

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body in one piece, which is not waited for

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, body = answer(asked["items"], dict(self.headers))
            said = json.dumps(body).encode()
            self.send_response(status)
            for name, value in (body.get("headers", {}) if isinstance(body, dict) else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: Any) -> None:
            pass

    with listening(Handler) as address:
        yield f"{address}/score"


@contextmanager
def chatting(reply: Callable[[str, str], str]) -> Iterator[str]:
    """An OpenAI-compatible API whose only model says reply(system message, question); gives its address."""

    class Handler(BaseHTTPRequestHandler):
        wbufsize = -1  # head and body in one piece, which is not waited for

        def do_GET(self) -> None:
            self.say({"data": [{"id": "program"}]})

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said = {m["role"]: m["content"] for m in asked["messages"]}
            text = reply(said.get("system", ""), said["user"])
            self.say({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})

        def say(self, body: Any) -> None:
            said = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args: Any) -> None:
            pass

    with listening(Handler) as address:
        yield f"{address}/v1"


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # with the 5 that is usual, one of eight at once waits a second for its turn


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on a free port while the block lasts; gives its address."""
    server = Server(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
