"""A vLLM server over HTTP (0.24, `vllm/entrypoints`): one address, JSON both ways, every failure one sentence."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.parse
from typing import Any

from posttrain.core.errors import UserError

KEY = "VLLM_API_KEY"  # the variable that `vllm serve` itself reads
_LIMIT = 1 << 30  # bytes of a reply that are read
_DROPPED = (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, http.client.CannotSendRequest)


class Gone(Exception):
    """Nobody answers, or not to the end: whoever comes back may have other weights."""


class Refused(UserError):
    """The server answered with an error."""

    def __init__(self, told: str, status: int) -> None:
        super().__init__(told)
        self.status = status


class Server:
    """Requests to one server; each thread has a connection of its own, which is kept."""

    def __init__(self, url: str, timeout: float = 1800.0, patience: float = 60.0) -> None:
        parts = urllib.parse.urlsplit(url.rstrip("/"))
        try:
            self.port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise UserError(f"{url} is no address; write it like http://host:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise UserError(f"{url} is no address; write it like http://host:8000")
        self.host, self.secure, self.path = parts.hostname, parts.scheme == "https", parts.path.removesuffix("/v1")
        self.url, self.timeout, self.patience = url.rstrip("/").removesuffix("/v1"), timeout, patience
        self._own = threading.local()

    def get(self, path: str) -> dict[str, Any]:
        return self._asked("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._asked("POST", path, json.dumps(body).encode())

    def wait(self, why: Gone) -> None:
        """Until somebody answers again; a sentence after `patience` seconds."""
        end = time.monotonic() + self.patience
        while True:
            try:
                self.get("/v1/models")
                return
            except Gone:
                if time.monotonic() >= end:
                    raise UserError(
                        f"nothing answers at {self.url} ({why}); is `vllm serve` running there? The same command goes on"
                    ) from None
                time.sleep(min(1.0, self.patience / 10))

    # ---- inside

    def _asked(self, verb: str, path: str, body: bytes | None) -> dict[str, Any]:
        key = os.environ.get(KEY, "")
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        status, said = self._exchange(verb, self.path + path, body, headers)
        if status >= 300:
            raise Refused(self._told(path, status, said), status)
        if not said:
            return {}
        try:
            found = json.loads(said)
        except ValueError:
            if path.endswith("_lora_adapter"):  # answers with a plain sentence
                return {}
            raise Refused(f"{self.url}{path} sent something that is not JSON; is it vLLM?", status) from None
        if not isinstance(found, dict):
            raise Refused(f"{self.url}{path} sent a {type(found).__name__}, not an object; is it vLLM?", status)
        return found

    def _exchange(self, verb: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        """One request; a connection that was kept and has been closed meanwhile is opened again, once."""
        for fresh in (False, True):
            kept = getattr(self._own, "connection", None)
            if fresh or kept is None:
                kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
                kept, fresh = kind(self.host, self.port, timeout=self.timeout), True
            try:
                kept.request(verb, path, body, headers)
                reply = kept.getresponse()
                said = reply.read(_LIMIT)
            except _DROPPED as error:
                self._own.connection = None
                if fresh:
                    raise Gone(str(error) or type(error).__name__) from None
            except TimeoutError:
                self._own.connection = None
                raise UserError(f"{self.url} did not answer within {self.timeout:g} s") from None
            except (OSError, http.client.HTTPException) as error:
                self._own.connection = None
                raise Gone(str(error) or type(error).__name__) from None
            else:
                self._own.connection = None if reply.will_close else kept
                return reply.status, said
        raise AssertionError("a fresh connection was tried")

    def _told(self, path: str, status: int, said: bytes) -> str:
        if status in (401, 403):
            return f"{self.url} wants another API key ({status}); export {KEY}=... as the server has it"
        return f"{self.url}{path} answered {status}: {message(said)}"


def message(said: bytes) -> str:
    """What an error says, in one line: {"error": {"message": ...}}, or FastAPI's {"detail": ...}."""
    text = said.decode(errors="replace")
    try:
        found = json.loads(text)
        inner = found.get("error") or found
        text = str(inner.get("message") or inner.get("detail") or text) if isinstance(inner, dict) else str(inner)
    except (ValueError, AttributeError):
        pass
    line = " ".join(text.split())
    return line[:300] or "nothing more"
