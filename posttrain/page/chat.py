"""Chat with one or two models from the page: the only address that takes a POST, from the page's own scripts alone.

A request must come from the page's origin and carry the token that this loading of the page was given, which no other site can read. It is
checked here, bounded in size, number and time, and forwarded to a server that answers to a key only this process knows (talk.py). The answer
is a stream of server-sent events; whoever hangs up ends it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Sequence
from html import escape
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from posttrain.core.errors import UserError, unknown
from posttrain.page.talk import Model as Model
from posttrain.page.talk import Refused, Talking

HEADER = "x-posttrain-token"
MOST_BYTES = 256 << 10  # of a request
MOST_MESSAGES = 200
MOST_TOKENS = 4096  # of an answer
AT_ONCE = 4  # answers being written
READ_SECONDS = 10.0  # to read a request
ROLES = ("system", "user", "assistant")


class Chat:
    """The models that may be talked to, and who may talk."""

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = {m.name: m for m in models}
        self.busy, self._secret = 0, secrets.token_bytes(32)

    # ---- who may ask

    def token(self) -> str:
        """A new one, for one loading of the page; nothing is kept of it."""
        number = secrets.token_hex(16)
        return f"{number}.{self._sign(number)}"

    def knows(self, token: str) -> bool:
        number, _, sign = token.partition(".")
        return hmac.compare_digest(sign.encode(), self._sign(number).encode())

    def _sign(self, number: str) -> str:
        return hmac.new(self._secret, number.encode(), hashlib.sha256).hexdigest()

    def head(self) -> str:
        """What the page's scripts read: the token and the names of the models."""
        names = escape(json.dumps(list(self.models)))
        return f'<meta name="posttrain-chat" content="{self.token()}" data-models="{names}">'

    # ---- answering

    async def answer(self, request: Request) -> Response:
        """What the model says, as a stream; a mistake as {"error"} with its status."""
        if not self.knows(request.headers.get(HEADER, "")):
            return told("this page was loaded from another start of posttrain view; reload it", 403)
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return told("a message is sent as application/json", 415)
        if self.busy >= AT_ONCE:
            return told(f"{AT_ONCE} answers are being written already; wait for one", 503)
        self.busy += 1
        talking = None
        try:
            body = await asyncio.wait_for(read(request), READ_SECONDS)
            talking = await Talking.begin(*parsed(body, self.models))
            return Answer(talking, self)
        except UserError as error:
            return told(str(error), 400)
        except Refused as error:
            return told(str(error), error.status)
        except (TimeoutError, ClientDisconnect):
            return told(f"the message did not come within {READ_SECONDS:g} s", 408)
        finally:
            self.busy -= talking is None  # else the answer says when it is done


class Answer(StreamingResponse):
    """Sends what is written as it is written; done or not, the connection to the model ends with it."""

    def __init__(self, talking: Talking, chat: Chat) -> None:
        super().__init__(self.sent(talking), 200, {"Cache-Control": "no-store"}, "text/event-stream")
        self.talking, self.chat = talking, chat

    async def sent(self, talking: Talking) -> AsyncIterator[bytes]:
        async for event in talking.events():
            yield b"data: " + json.dumps(event).encode() + b"\n\n"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.talking.close()
            self.chat.busy -= 1


def told(sentence: str, status: int) -> Response:
    return JSONResponse({"error": sentence}, status, {"Cache-Control": "no-store"})


async def read(request: Request) -> bytes:
    """The body, as far as it is not too long."""
    got = bytearray()
    async for some in request.stream():
        got += some
        if len(got) > MOST_BYTES:
            raise UserError(f"the conversation has more than {MOST_BYTES >> 10} kB; begin a new one")
    return bytes(got)


def parsed(body: bytes, models: dict[str, Model]) -> tuple[Model, dict[str, Any]]:
    """Who is asked, and the request to it, of what is known here alone."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError("a message is a JSON object: model, messages, temperature, max_tokens")
    name = found.get("model")
    if not isinstance(name, str) or name not in models:
        raise unknown("model", str(name)[:100], models)
    messages = found.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= MOST_MESSAGES:
        raise UserError(f"messages must be a list of 1 to {MOST_MESSAGES}; begin a new conversation")
    temperature, longest = found.get("temperature", 1.0), found.get("max_tokens", 512)
    if not isinstance(temperature, int | float) or isinstance(temperature, bool) or not 0 <= temperature <= 2:
        raise UserError(f"temperature is {str(temperature)[:40]}; it must be 0 to 2")
    if not isinstance(longest, int) or isinstance(longest, bool) or not 1 <= longest <= MOST_TOKENS:
        raise UserError(f"max_tokens is {str(longest)[:40]}; it must be a whole number, 1 to {MOST_TOKENS}")
    sent = [message(m) for m in messages]
    return models[name], {"messages": sent, "temperature": temperature, "max_tokens": longest}


def message(found: Any) -> dict[str, str]:
    if not isinstance(found, dict) or found.get("role") not in ROLES or not isinstance(found.get("content"), str):
        raise UserError(f"a message has a role ({', '.join(ROLES)}) and a text as content")
    return {"role": found["role"], "content": found["content"]}
