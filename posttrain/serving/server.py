"""`posttrain serve`: uvicorn in front of a service, with time limits for clients that are slow on purpose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from posttrain.core.errors import UserError
from posttrain.serving.address import Listening, listen, loopback
from posttrain.serving.app import App
from posttrain.serving.service import Service

REQUEST_SECONDS = 30.0  # to send a whole request
READ_SECONDS = 60.0  # to take some of a reply that is ready
IDLE_SECONDS = 60  # between two requests on a connection
GRACE_SECONDS = 5.0  # for answers in progress when the server is stopped
MAX_CONNECTIONS = 1024
MAX_HEADER_BYTES = 64 << 10
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-type: text/plain\r\ncontent-length: 38\r\n\r\n"
TIMEOUT += b"the request was not complete in time.\n"


def require_key(host: str, key: str, origins: Sequence[str] = ()) -> None:
    """An address that other machines can reach needs an API key, and so does a server that any web page may use."""
    if not loopback(host) and not key:
        raise UserError(
            f"{host!r} can be reached by other machines, and there is no key; add --api-key KEY (or set "
            "POSTTRAIN_API_KEY), or leave --host out to serve this machine only"
        )
    if "*" in origins and not key:
        raise UserError("--allow-origin '*' lets any web page use this server; add --api-key KEY, or name the origins")


class Connection(H11Protocol):
    """A connection that must send its request, and take its reply, in bounded time."""

    _deadline: asyncio.TimerHandle | None = None  # of the request
    _stuck: asyncio.TimerHandle | None = None  # of the reply

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # what follows a reply that was sent early is not HTTP
            self.transport.abort()
        self._watch(self.conn.their_state in (h11.IDLE, h11.SEND_BODY))

    def on_response_complete(self) -> None:
        super().on_response_complete()  # which may begin with the next request, if some of it has come already
        state = self.conn.their_state
        self._watch(state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0])))

    def _watch(self, incomplete: bool) -> None:
        """Time runs while a request has begun to come and is not complete."""
        if not incomplete or self.transport.is_closing():
            self._deadline = cancelled(self._deadline)
        elif self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_SECONDS, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline, self._stuck = cancelled(self._deadline), cancelled(self._stuck)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(READ_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stuck = cancelled(self._stuck)

    def _too_slow(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(TIMEOUT)
        self.transport.close()


def cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more."""
    if timer is not None:
        timer.cancel()
    return None


class Uvicorn(uvicorn.Server):
    """Answers in progress have some seconds to end when the server is stopped; then they end with an error that says so."""

    def __init__(self, config: uvicorn.Config, front: App) -> None:
        super().__init__(config)
        self.front = front

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.front.ending = True
        timer = asyncio.get_running_loop().call_later(GRACE_SECONDS, self.front.end)
        await super().shutdown(sockets)
        timer.cancel()


class Server(Listening):
    """Listens on host and port; all connections share the service's one engine.

    key: clients must send it ("": none needed, local addresses only); origins: web pages that may ask ("*": any); log: called with
    one line per request
    """

    def __init__(
        self, service: Service, host: str = "127.0.0.1", port: int = 8000, key: str = "",
        log: Callable[[str], None] | None = None, origins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        require_key(host, key, origins)
        self.service, self.host, self.socket = service, host, listen(host, port)
        self.port = int(self.socket.getsockname()[1])
        app = App(service, key, origins, log)
        config = uvicorn.Config(
            app.asgi, http=Connection, ws="none", lifespan="off", loop="asyncio",
            interface="asgi3", log_config=None, log_level="critical", access_log=False, server_header=False,
            proxy_headers=False, timeout_keep_alive=IDLE_SECONDS, timeout_graceful_shutdown=int(2 * GRACE_SECONDS),
            limit_concurrency=MAX_CONNECTIONS, backlog=256, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )  # fmt: skip
        self.uvicorn = Uvicorn(config, app)

    @property
    def url(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"
