"""Chat with one or two models from the page: the only address that takes a POST, from the page's own scripts alone.

A request must come from the page's origin and carry the token that this loading of the page was given, which no other site can read. It is
checked here, bounded in size, number and time, and forwarded to a server that answers to a key only this process knows.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request

from posttrain.core.errors import UserError, unknown

HEADER = "x-posttrain-token"
MOST_BYTES = 256 << 10  # of a request
MOST_REPLY = 4 << 20
MOST_MESSAGES = 200
MOST_TOKENS = 4096  # of an answer
AT_ONCE = 4  # answers being written
READ_SECONDS, SECONDS = 10.0, 300.0  # to read a request, and to answer it
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Model:
    """A server of a model on this machine: its name, port and key."""

    name: str
    port: int
    key: str


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

    async def answer(self, request: Request) -> tuple[dict[str, Any], int]:
        """What the model says, or {"error"}; and the status."""
        if not self.knows(request.headers.get(HEADER, "")):
            return {"error": "this page was loaded from another start of posttrain view; reload it"}, 403
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return {"error": "a message is sent as application/json"}, 415
        if self.busy >= AT_ONCE:
            return {"error": f"{AT_ONCE} answers are being written already; wait for one"}, 503
        self.busy += 1
        try:
            body = await asyncio.wait_for(read(request), READ_SECONDS)
            model, asked = parsed(body, self.models)
            return await run_in_threadpool(forward, model, asked)
        except UserError as error:
            return {"error": str(error)}, 400
        except (TimeoutError, ClientDisconnect):
            return {"error": f"the message did not come within {READ_SECONDS:g} s"}, 408
        finally:
            self.busy -= 1


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


def forward(model: Model, asked: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Ask the model's server; its answer, why it ended and its tokens."""
    connection = http.client.HTTPConnection("127.0.0.1", model.port, timeout=SECONDS)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {model.key}"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked), headers)
        reply = connection.getresponse()
        body = json.loads(reply.read(MOST_REPLY))
        if reply.status != 200:
            return {"error": f"{model.name}: {body['error']['message']}"}, 400
        choice = body["choices"][0]
        said = {"text": choice["message"]["content"] or "", "end": choice["finish_reason"]}
        return said | {"tokens": body["usage"]["completion_tokens"]}, 200
    except TimeoutError:
        return {"error": f"{model.name} did not answer within {SECONDS:g} s; ask for fewer tokens"}, 504
    except (OSError, http.client.HTTPException):
        return {"error": f"the server of {model.name} has ended; start posttrain view again"}, 502
    except (ValueError, KeyError, IndexError, TypeError):
        return {"error": f"the server of {model.name} answered with something else than an answer"}, 502
    finally:
        connection.close()
