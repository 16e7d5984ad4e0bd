"""The page over HTTP: who may ask, which addresses answer, with which headers. Everything is read with GET; /chat alone takes a POST.

Without a key only this machine is answered, by the names of this machine (against DNS rebinding), and only to pages of its own origin.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import math
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posttrain.core.errors import UserError
from posttrain.page.api import ROUTES, answer
from posttrain.page.chat import Chat
from posttrain.page.folder import Folder
from posttrain.page.live import changes
from posttrain.serving.address import loopback

STATIC = files("posttrain.page") / "static"
KINDS = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "X-Frame-Options": "DENY",
}  # fmt: skip
COOKIE = "posttrain-view"
CHAT = "/chat"
STREAMS = 64  # pages that are kept up to date at the same time


def static_files() -> dict[str, tuple[bytes, str]]:
    """Name -> (bytes, kind): what is not in it is not served."""
    found = [f for f in STATIC.iterdir() if f.is_file()]
    return {f.name: (f.read_bytes(), KINDS[suffix]) for f in found if (suffix := f.name[f.name.rfind(".") :]) in KINDS}


class App:
    """The addresses of the page over a folder of runs; key: what visitors must know ("": none, this machine only)."""

    def __init__(self, folder: Folder, port: int, key: str = "", chat: Chat | None = None) -> None:
        self.folder, self.port, self.key, self.chat, self.streams = folder, port, key, chat, 0
        self.token = hashlib.sha256(f"posttrain view {key}".encode()).hexdigest()
        self.static = static_files()
        routes = [
            Route("/", self.index), Route("/static/{name}", self.file), Route("/api/{address}", self.api),
            Route("/events", self.events), *([Route(CHAT, self.say, methods=["POST"])] if chat else []),
        ]  # fmt: skip
        self.asgi = Starlette(routes=routes, middleware=[Middleware(Guard, front=self)])

    # ---- who may ask

    def refusal(self, request: Request) -> tuple[int, str] | None:
        """Checks of the headers alone: the method, the Host, a web page's origin, the key."""
        posts = self.chat is not None and request.method == "POST" and request.scope["path"] == CHAT
        if request.method != "GET" and not posts:
            return 405, "the page only reads: GET"
        host = request.headers.get("host", "")
        name, colon, port = host.rpartition(":")
        if host.endswith("]") or not colon:
            name, port = host, "80"  # as browsers leave it out
        if not self.key and (not loopback(name) or port != str(self.port)):
            return 400, "this page answers to localhost only; open it at the address that posttrain view has printed"
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
        navigates = request.headers.get("sec-fetch-mode") == "navigate" and request.scope["path"] == "/"
        own = (origin is None and not posts) or origin in (f"http://{host}", f"https://{host}")
        if not own or (site not in ("none", "same-origin") and not navigates):
            return 403, "another site may not read this page"
        if self.key and not self.knows(request):
            return 401, "wrong or no key; open the address that posttrain view has printed, with its ?key="
        return None

    def knows(self, request: Request) -> bool:
        """The key in the address (once, then a cookie), or as Authorization: Bearer KEY for programs."""
        sent = request.headers.get("authorization", "").removeprefix("Bearer ").strip() or request.query_params.get(
            "key", ""
        )
        if hmac.compare_digest(sent.encode(), self.key.encode()):
            return True
        return hmac.compare_digest(request.cookies.get(COOKIE, "").encode(), self.token.encode())

    # ---- addresses

    async def index(self, request: Request) -> Response:
        if self.key and "key" in request.query_params:  # out of the address, so that nobody reads or shares it there
            response = RedirectResponse("/", 303)
            response.set_cookie(
                COOKIE, self.token, httponly=True, samesite="strict", secure=request.url.scheme == "https"
            )
            return response
        if self.chat is None:
            return self.sent("index.html")
        text = self.static["index.html"][0].decode().replace("</head>", f"{self.chat.head()}\n</head>", 1)
        return Response(text, 200, {"Cache-Control": "no-store"}, "text/html; charset=utf-8")

    async def say(self, request: Request) -> Response:
        """A message to a model, and its answer."""
        assert self.chat is not None, "the route is there only with it"
        return await self.chat.answer(request)

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        return self.sent(name) if name in self.static else reply({"error": "there is no such file"}, 404)

    def sent(self, name: str) -> Response:
        body, kind = self.static[name]
        return Response(body, 200, {"Cache-Control": "no-cache"}, f"{kind}; charset=utf-8")

    async def api(self, request: Request) -> Response:
        address, params = request.path_params["address"], dict(request.query_params)
        params.pop("key", None)
        try:
            body = await run_in_threadpool(lambda: encoded(answer(self.folder, address, params)))
        except UserError as error:
            return reply({"error": str(error)}, 400 if address in ROUTES else 404)
        return Response(body, 200, {"Cache-Control": "no-store"}, "application/json")

    async def events(self, request: Request) -> Response:
        """Server-sent events: how far a run is, whenever its database has changed."""
        name = request.query_params.get("run", "")
        if self.streams >= STREAMS:
            return reply({"error": f"{STREAMS} pages are being kept up to date already; close one"}, 503)
        try:
            self.folder.summary(name)
        except UserError as error:
            return reply({"error": str(error)}, 400)
        self.streams += 1  # before anybody else is asked, so that many at once are no more
        return Following(self, name)

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        async for event in changes(self.folder, name):
            yield b": still here\n\n" if event is None else b"data: " + encoded(event) + b"\n\n"


class Following(StreamingResponse):
    """Server-sent events until the page is closed."""

    def __init__(self, app: App, name: str) -> None:
        super().__init__(app.stream(name), 200, {"Cache-Control": "no-store"}, "text/event-stream")
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.app.streams -= 1


class Guard:
    """Around everything: may its sender ask, and the headers of every reply; a bug of this program is a 500 without its trace."""

    def __init__(self, app: ASGIApp, front: App) -> None:
        self.app, self.front = app, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [
                    *message["headers"],
                    *((k.lower().encode(), v.encode()) for k, v in HEADERS.items()),
                ]
            await send(message)

        refused = self.front.refusal(Request(scope))
        if refused is not None:
            return await reply({"error": refused[1]}, refused[0])(scope, receive, with_headers)
        try:
            await self.app(scope, receive, with_headers)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not started:
                told = f"{type(error).__name__}: {error}; this is a bug of the page"
                await reply({"error": told}, 500)(scope, receive, with_headers)


def encoded(body: Any) -> bytes:
    """As JSON; half a surrogate pair, which no UTF-8 knows, stays an escape, and what JSON does not know is null."""
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, TypeError):  # a file of the run has a NaN, the database bytes where text belongs
        return json.dumps(plain(body), separators=(",", ":")).encode()


def plain(body: Any) -> Any:
    """The same with null for NaN and infinities, and bytes as text."""
    if isinstance(body, dict):
        return {str(k): plain(v) for k, v in body.items()}
    if isinstance(body, list | tuple):
        return [plain(v) for v in body]
    if isinstance(body, bytes):
        return body.decode("utf-8", "backslashreplace")
    return None if isinstance(body, float) and not math.isfinite(body) else body


def reply(body: dict[str, Any], status: int) -> Response:
    return Response(encoded(body), status, {"Cache-Control": "no-store"}, "application/json")
