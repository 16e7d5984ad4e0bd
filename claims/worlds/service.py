"""A scoring service on this machine, in a thread: the other side of `rewards.http_scorer`, with faults on purpose."""

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

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/score"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
