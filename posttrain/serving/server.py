"""`posttrain serve`: the standard library's HTTP server in front of a Service, with OpenAI's API."""

from __future__ import annotations

import hmac
import ipaddress
import json
import select
import socket
import socketserver
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.serving.openai import ApiError, parse_json, parse_request
from posttrain.serving.service import Reply, Service

MAX_BODY_BYTES = 8 << 20  # of a request
CLIENT_TIMEOUT = 60  # seconds without a byte from a client before its connection is closed
POSTS = {"/v1/chat/completions": "chat", "/v1/completions": "text"}
GETS = ("/health", "/v1/models")


def loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_key(host: str, key: str) -> None:
    """An address that other machines can reach needs an API key."""
    if not loopback(host) and not key:
        raise UserError(
            f"{host!r} can be reached by other machines, and there is no key; add --api-key KEY (or set "
            "POSTTRAIN_API_KEY), or leave --host out to serve this machine only"
        )


class Server(ThreadingHTTPServer):
    """Listens on host and port; every connection has a thread, and all of them share the service's one engine.

    key: clients must send it ("": none needed, local addresses only); log: called with one line per request
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, service: Service, host: str = "127.0.0.1", port: int = 8000, key: str = "",
        log: Callable[[str], None] | None = None,
    ) -> None:  # fmt: skip
        require_key(host, key)
        self.service, self.key, self.log = service, key, log
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot listen on {host}:{port} ({error}); use another --port or --host") from None

    def server_bind(self) -> None:
        """Without the reverse DNS look-up, which may be slow and is not used."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is not worth a stack trace."""


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "posttrain"
    protocol_version = "HTTP/1.1"
    timeout = CLIENT_TIMEOUT

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_POST(self) -> None:
        self._handle(self._post)

    def _handle(self, work: Callable[[], None]) -> None:
        """Errors in OpenAI's shape; a client that has disconnected gets nothing."""
        try:
            try:
                work()
            except ApiError as error:
                self._send(error.status, error.body())
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:  # a bug of this program: the client gets a 500, the server goes on
                self._send(500, ApiError(500, f"{type(error).__name__}: {error}").body())
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _get(self) -> None:
        path, service = self.path.split("?")[0].rstrip("/"), self.server.service
        if path == "/health":
            queue = service.queue
            healthy = queue.broken is None and queue.is_alive()
            return self._send(200 if healthy else 503, {"status": "ok" if healthy else "broken", "answers": queue.load})
        self._authorize()
        if path == "/v1/models":
            return self._send(200, {"object": "list", "data": service.models()})
        if path.startswith("/v1/models/"):
            service.check_model(path.removeprefix("/v1/models/"))
            return self._send(200, service.models()[0])
        raise self._not_found(path, path in POSTS, "POST")

    def _post(self) -> None:
        path = self.path.split("?")[0].rstrip("/")
        raw = self._body()
        self._authorize()
        if path not in POSTS:
            raise self._not_found(path, path in GETS, "GET")
        params = parse_request(parse_json(raw), POSTS[path])
        reply = self.server.service.submit(params)
        try:
            self._stream(reply) if params.stream else self._reply(reply)
        except BaseException:
            reply.cancel()
            raise

    def _authorize(self) -> None:
        """Checks the key; without one, the Host header must be a loopback name (against DNS rebinding by a web page)."""
        key, header = self.server.key, self.headers.get("Authorization", "")
        if key and not hmac.compare_digest(header.removeprefix("Bearer ").strip().encode(), key.encode()):
            raise ApiError(401, "wrong or no API key; send it as Authorization: Bearer KEY", code="invalid_api_key")
        host = self.headers.get("Host", "localhost")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not key and not loopback(name):
            raise ApiError(403, f"this server answers to localhost only, not to {host!r}; start it with --api-key")

    def _not_found(self, path: str, other: bool, method: str) -> ApiError:
        if other:
            return ApiError(405, f"{path} is asked with {method}, not {self.command}")
        close = nearest(path, [*GETS, *POSTS])
        return ApiError(404, f"no such address: {path}; " + (f"did you mean {close}?" if close else "see /v1/models"))

    def _body(self) -> bytes:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal():
            self.close_connection = True
            raise ApiError(411, "a request needs a Content-Length")
        if int(size) > MAX_BODY_BYTES:
            self.close_connection = True
            raise ApiError(413, f"a request of {int(size):,} bytes; at most {MAX_BODY_BYTES:,} are read")
        return self.rfile.read(int(size))

    # ---- replies

    def _send(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        if status == 503:
            self.send_header("Retry-After", "1")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(raw)

    def _reply(self, reply: Reply) -> None:
        for _ in reply.wait():
            self._check_connected()
        self._send(200, reply.body())

    def _stream(self, reply: Reply) -> None:
        """Server-sent events; the end of the connection is the end of the stream."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for chunk in reply.chunks():
                self._check_connected()
                if chunk is not None:
                    self._event(json.dumps(chunk))
        except ApiError as error:  # too late for an HTTP status
            return self._event(json.dumps(error.body()))
        self._event("[DONE]")

    def _event(self, text: str) -> None:
        self.wfile.write(f"data: {text}\n\n".encode())

    def _check_connected(self) -> None:
        """Raises if the client has disconnected: its socket is then readable and has no data."""
        if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError

    def log_message(self, format: str, *args: Any) -> None:
        if self.server.log:
            self.server.log(format % args)
