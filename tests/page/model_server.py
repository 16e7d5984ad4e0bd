"""A model's server for the tests of chat: it speaks as `posttrain serve` does, word by word, and waits where a test tells it to."""

from __future__ import annotations

import json
import select
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(BaseHTTPRequestHandler):
    """Says the last message again. "fail", "odd", "half" and "broken" are answered in other ways; of "hold" the first word is said, then
    it waits until `go_on` is set or whoever asks has hung up."""

    server: ModelServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, self.headers["Authorization"], body))
        last = body["messages"][-1]["content"]
        if last == "fail":
            return self.whole(400, {"error": {"message": "too long"}})
        if last == "odd":
            return self.whole(200, [])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        for n, word in enumerate(f"you said {last}".split(" ")):
            self.event({"choices": [{"delta": {"content": f" {word}" if n else word}, "finish_reason": None}]})
            if n == 0 and last == "hold" and not self.waits():
                return
            if n == 1 and last in ("half", "broken"):
                return self.event([1]) if last == "broken" else None
        self.event({"choices": [{"delta": {}, "finish_reason": "length" if last == "long" else "stop"}]})
        self.event({"choices": [], "usage": {"completion_tokens": 3}})
        self.wfile.write(b"data: [DONE]\n\n")

    def waits(self) -> bool:
        """Whether it may go on; False once nobody listens."""
        while not self.server.go_on.wait(0.02):
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1):
                self.server.left.set()
                return False
        return True

    def event(self, found: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(found).encode() + b"\n\n")
        self.wfile.flush()

    def whole(self, status: int, found: Any) -> None:
        sent = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *args: Any) -> None:
        pass


class ModelServer(ThreadingHTTPServer):
    """On a free port, in a thread."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Server)
        self.seen: list[tuple[str, str, Any]] = []
        self.go_on, self.left = threading.Event(), threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def stop(self) -> None:
        self.go_on.set()
        self.shutdown()
        self.server_close()
