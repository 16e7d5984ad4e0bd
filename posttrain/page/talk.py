"""Asking a model's server for an answer, piece by piece as it is written. Letting go of the connection ends the writing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import h11

SECONDS = 300.0  # for a whole answer
MOST_REPLY = 4 << 20  # bytes of it
_READ = 1 << 14


@dataclass(frozen=True)
class Model:
    """A server of a model on this machine: its name, port and key."""

    name: str
    port: int
    key: str


class Refused(Exception):
    """No answer: the status and the sentence to reply with."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


class Talking:
    """A connection to a model's server that writes an answer."""

    def __init__(self, model: Model, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.model, self.reader, self.writer = model, reader, writer
        self.http = h11.Connection(h11.CLIENT)
        self.until, self.size = time.monotonic() + SECONDS, 0

    @classmethod
    async def begin(cls, model: Model, asked: dict[str, Any]) -> Talking:
        """Ask; returns once the server has begun to answer."""
        body = json.dumps(asked | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        headers += [("Authorization", f"Bearer {model.key}"), ("Connection", "close")]
        try:
            talk = cls(model, *await asyncio.open_connection("127.0.0.1", model.port))
        except OSError:
            raise ended(model) from None
        try:
            request = h11.Request(method="POST", target="/v1/chat/completions", headers=headers)
            for part in (request, h11.Data(data=body), h11.EndOfMessage()):
                talk.writer.write(talk.http.send(part) or b"")
            await talk._head()
        except BaseException:
            talk.close()
            raise
        return talk

    async def _head(self) -> None:
        """The status and the kind of the reply; anything but a stream is no answer."""
        found = await self._next()
        while isinstance(found, h11.InformationalResponse):
            found = await self._next()
        assert isinstance(found, h11.Response), "h11 gives the head first"
        kind = dict(found.headers).get(b"content-type", b"").partition(b";")[0]
        if found.status_code == 200 and kind == b"text/event-stream":
            return
        body = b"".join([some async for some in self._data()])
        try:
            said = json.loads(body)["error"]["message"]
        except (ValueError, RecursionError, KeyError, IndexError, TypeError):
            raise odd(self.model) from None
        raise Refused(400, f"{self.model.name}: {said}")

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """{"text"} for each piece, then {"end", "tokens"}; {"error"} where it did not come so far."""
        end, tokens = None, None
        try:
            async for line in self._lines():
                found = json.loads(line)
                tokens = (found.get("usage") or {}).get("completion_tokens", tokens)
                for choice in found["choices"]:
                    end = choice.get("finish_reason") or end
                    if text := choice["delta"].get("content"):
                        yield {"text": str(text)}
            if end is None:
                raise odd(self.model)
            yield {"end": str(end), "tokens": tokens}
        except Refused as error:
            yield {"error": str(error)}
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
            yield {"error": str(odd(self.model))}

    async def _lines(self) -> AsyncIterator[bytes]:
        """What stands behind `data: `, up to [DONE]."""
        rest = b""
        async for some in self._data():
            *lines, rest = (rest + some).split(b"\n")
            for line in lines:
                if line.startswith(b"data: ") and line.strip() == b"data: [DONE]":
                    return
                if line.startswith(b"data: "):
                    yield line[6:]

    async def _data(self) -> AsyncIterator[bytes]:
        while not isinstance(found := await self._next(), h11.EndOfMessage):
            if isinstance(found, h11.Data):
                self.size += len(found.data)
                if self.size > MOST_REPLY:
                    raise odd(self.model)
                yield bytes(found.data)

    async def _next(self) -> Any:
        """The next event of the connection."""
        try:
            while (found := self.http.next_event()) is h11.NEED_DATA:
                left = self.until - time.monotonic()
                self.http.receive_data(await asyncio.wait_for(self.reader.read(_READ), max(left, 0.0)))
        except TimeoutError:
            told = f"{self.model.name} did not answer within {SECONDS:g} s; ask for fewer tokens"
            raise Refused(504, told) from None
        except (OSError, h11.RemoteProtocolError):
            raise ended(self.model) from None
        if isinstance(found, h11.ConnectionClosed):
            raise ended(self.model)
        return found

    def close(self) -> None:
        self.writer.close()


def ended(model: Model) -> Refused:
    return Refused(502, f"the server of {model.name} has ended; start posttrain view again")


def odd(model: Model) -> Refused:
    return Refused(502, f"the server of {model.name} answered with something else than an answer")
