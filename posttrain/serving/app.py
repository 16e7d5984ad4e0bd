"""The HTTP surface: who may ask, how much is read, which address answers, and errors in OpenAI's shape.

Checks come in the order of their cost: origin, host and key by the headers alone, then the size of the body, then its fields, then
(on worker threads, so that no stream waits) its tokens.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from posttrain.core.errors import nearest
from posttrain.core.terminal import printable
from posttrain.serving.address import loopback as loopback
from posttrain.serving.limits import MAX_NAME, ApiError, shown
from posttrain.serving.openai import parse_json, parse_request
from posttrain.serving.reply import Reply
from posttrain.serving.request import QueueFull
from posttrain.serving.service import Service

T = TypeVar("T")
POSTS = {"/v1/chat/completions": "chat", "/v1/completions": "text"}
GETS = ("/health", "/v1/models")
STOPPED = "the server was stopped"
WORKERS = 4  # threads that parse and tokenise


class App:
    """The addresses of the API over a service.

    key: clients must send it ("": none needed); origins: web pages that may ask; log: called with one line per request
    """

    def __init__(
        self, service: Service, key: str = "", origins: Sequence[str] = (), log: Callable[[str], None] | None = None
    ) -> None:
        self.service, self.key, self.origins, self.log = service, key, origins, log
        self.live: set[Reply] = set()
        self.ending = False  # no new answers are begun
        self.workers = ThreadPoolExecutor(WORKERS, "posttrain-parse")
        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            *(Route(path, self.complete, methods=["POST"]) for path in POSTS),
        ]
        cors = Middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["Authorization", "*"]
        )
        self.asgi = Starlette(
            routes=routes,
            middleware=[Middleware(Front, app_=self), *([cors] if origins else []), Middleware(Guard, app_=self)],
            exception_handlers={ApiError: refuse, HTTPException: self.not_found, ClientDisconnect: gone},  # type: ignore[dict-item]
        )
        self.asgi.router.redirect_slashes = False

    # ---- who may ask

    def admit(self, request: Request) -> None:
        """Checks of the headers alone: a web page's origin, the Host (against DNS rebinding), the key."""
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
        allowed = "*" in self.origins or origin in self.origins
        if (origin is not None and not allowed) or (origin is None and site not in ("none", "same-origin")):
            told = f"a web page of {shown(origin or 'another site')} may not use this server"
            raise ApiError(403, f"{told}; start it with --allow-origin to let it")
        if request.scope["path"] == "/health":
            return
        sent = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if self.key and not hmac.compare_digest(sent.encode("latin-1"), self.key.encode()):
            raise ApiError(401, "wrong or no API key; send it as Authorization: Bearer KEY", code="invalid_api_key")
        host = request.headers.get("host", "localhost")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not self.key and not loopback(name):
            told = f"this server answers to localhost only, not to {shown(host)}"
            raise ApiError(403, f"{told}; start it with --api-key")

    # ---- addresses

    async def health(self, request: Request) -> Response:
        queue = self.service.queue
        healthy = queue.broken is None and queue.is_alive()
        return reply_json({"status": "ok" if healthy else "broken", "answers": queue.load}, 200 if healthy else 503)

    async def models(self, request: Request) -> Response:
        return reply_json({"object": "list", "data": self.service.models()})

    async def model(self, request: Request) -> Response:
        self.service.check_model(request.path_params["name"])
        return reply_json(self.service.models()[0])

    async def complete(self, request: Request) -> Response:
        if self.ending:
            raise ApiError(503, STOPPED)
        raw, kind = await self.read(request), POSTS[request.scope["path"]]

        def submit() -> Reply:
            params = parse_request(parse_json(raw), kind, self.service.limits)
            return self.service.submit(params)

        reply = await self.in_thread(submit)
        return Generated(self, reply)

    def end(self) -> None:
        """Answers in progress end with an error that says so."""
        for reply in self.live:
            reply.request.update({}, QueueFull(STOPPED))

    async def read(self, request: Request) -> bytes:
        """The body, of which no more is read than may be sent."""
        most, given = self.service.limits.body_bytes, request.headers.get("content-length", "0")
        told = f"a request of more than {most:,} bytes, the most that are read"
        if len(given) > 15 or int(given) > most:
            raise ApiError(413, told)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > most:
                raise ApiError(413, told)
        return bytes(body)

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.workers, work)

    def not_found(self, request: Request, error: HTTPException) -> Response:
        path = request.scope["path"]
        if error.status_code == 405:
            ask = "POST" if path in POSTS else "GET"
            return reply_error(ApiError(405, f"{shown(path)} is asked with {ask}, not {shown(request.method)}"))
        close = nearest(path[:MAX_NAME], [*GETS, *POSTS])
        hint = f"did you mean {close}?" if close else "see /v1/models"
        return reply_error(ApiError(404, f"no such address: {shown(path)}; {hint}"))


class Generated(Response):
    """A reply whose answers are being generated: whole, or server-sent events; generation ends with the connection."""

    def __init__(self, app: App, reply: Reply) -> None:
        self.app, self.reply, self.background = app, reply, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.app.live.add(self.reply)
        work = asyncio.ensure_future(self._send(scope, receive, send))
        hang_up = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait((work, hang_up), return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            self.app.live.discard(self.reply)
            self.reply.cancel()
            for task in (work, hang_up):
                task.cancel()
            await asyncio.gather(work, hang_up, return_exceptions=True)

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.reply.params.stream:
            return await self._stream(send)
        try:
            async for _ in self.reply.wait():
                pass
            response = await self.app.in_thread(lambda: reply_json(self.reply.body()))
        except ApiError as error:
            response = reply_error(error)
        await response(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            async for chunk in self.reply.chunks():
                await send(event(json.dumps(chunk)))
            last = "[DONE]"
        except ApiError as error:  # too late for an HTTP status
            last = json.dumps(error.body())
        await send(event(last, more=False))


class Front:
    """Around everything: trailing slashes, a line of the log per request, and a bug of this program as a 500."""

    def __init__(self, app: ASGIApp, app_: App) -> None:
        self.app, self.app_ = app, app_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["path"] = scope["path"].rstrip("/") or "/"
        status, start, why = 0, time.monotonic(), ""

        async def watched(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            why = f" {type(error).__name__}: {error}"
            if not status:
                await reply_error(ApiError(500, f"{type(error).__name__}: {error}"))(scope, receive, watched)
        finally:
            if self.app_.log:
                line = f"{scope['method']} {scope['path'][:MAX_NAME]} {status or 'hung up'} {time.monotonic() - start:.2f} s"
                self.app_.log(printable(line + why, one_line=True))


class Guard:
    """Before anything is read of a request: may its sender ask?"""

    def __init__(self, app: ASGIApp, app_: App) -> None:
        self.app, self.app_ = app, app_

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.app_.admit(Request(scope))
        except ApiError as error:
            return await reply_error(error)(scope, receive, send)
        await self.app(scope, receive, send)


# ---- replies


def reply_json(body: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(body), status, headers, "application/json")


def reply_error(error: ApiError) -> Response:
    """What comes of a body after its reply is thrown away as it comes, so that the client reads the reply and not a reset."""
    return reply_json(error.body(), error.status, {"Retry-After": "1"} if error.status == 503 else None)


async def refuse(request: Request, error: ApiError) -> Response:
    return reply_error(error)


async def gone(request: Request, error: ClientDisconnect) -> Response:
    """The client has left while it sent its request; nobody reads this."""
    return reply_error(ApiError(400, "the connection ended before the request was complete"))


def event(text: str, more: bool = True) -> dict[str, Any]:
    return {"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": more}


async def disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
