"""A client of any OpenAI-compatible server: requests side by side, retried, limited in rate, counted."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from posttrain.core.errors import UserError, unknown

_LIMIT = 16 * 2**20  # bytes of a reply that are read
_FATAL = (401, 403, 404)  # a wrong key or a wrong name: every other request would fail in the same way
_BROKEN = (OSError, http.client.HTTPException, ValueError, RecursionError)
_LONGEST = 1e6  # seconds that a request may take, or wait for its turn


@dataclass(frozen=True)
class Reply:
    """One answer: its text, why it ended (stop, length, ...), and tokens as the server counts them (0: it does not)."""

    text: str
    stop: str = "stop"
    tokens: int = 0
    prompt_tokens: int = 0


@dataclass(frozen=True)
class NoReply:
    """Why there is no answer; status 0: nobody answered at all."""

    why: str
    status: int = 0

    @property
    def fatal(self) -> bool:
        return self.status in _FATAL


class Stay(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another address."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class ChatAPI:
    """`ask(bodies)` posts each to /chat/completions, `concurrency` at a time and at most `rate` per second (0: no limit).

    A request that fails (no reply, 429, 5xx) is sent `retries` times more, after wait, 2 wait, 4 wait ... seconds, or what
    Retry-After says. When as many requests as run side by side have failed in a row without any reply, the rest of the call
    is given up at once.
    """

    def __init__(
        self, url: str, model: str = "", key_env: str = "", concurrency: int = 8, rate: float = 0.0, retries: int = 4,
        timeout: float = 120.0, wait: float = 0.5, sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        if key_env and not os.environ.get(key_env):
            raise UserError(f"there is no environment variable {key_env!r} with the API key; export {key_env}=...")
        slowest = 0 < rate < 1 / _LONGEST
        if concurrency < 1 or retries < 0 or not rate >= 0 or slowest or not 0 < timeout <= _LONGEST:
            raise UserError(
                f"concurrency is at least 1, retries at least 0, rate 0 or at least {1 / _LONGEST:g}, timeout more than 0 and at most "
                f"{_LONGEST:g}; got {concurrency}, {retries}, {rate}, {timeout}"
            )
        self.url, self.model, self.key_env = base_url(url), model, key_env
        self.concurrency, self.rate, self.retries, self.timeout, self.wait = concurrency, rate, retries, timeout, wait
        self.sleep, self.clock = sleep, clock
        self.requests, self.retried, self.failed, self.prompt_tokens, self.tokens = 0, 0, 0, 0, 0
        self._next, self._in_a_row, self._down = float("-inf"), 0, ""
        self._lock = threading.Lock()
        self._open = urllib.request.build_opener(Stay)

    def ask(self, bodies: Sequence[dict[str, Any]]) -> list[Reply | NoReply]:
        """One reply per body, in order; `model` is filled in where a body names none."""
        self._in_a_row, self._down = 0, ""
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(self._one, [{"model": self.model, **body} for body in bodies]))

    def choose_model(self) -> str:
        """The name of the only model that is served; with several the user must say which."""
        try:
            listed = self._call("/models", None).get("data")
            names = [str(m["id"]) for m in listed] if isinstance(listed, list) else []
        except (*_BROKEN, KeyError, TypeError) as error:
            raise UserError(self.told(error)) from None
        if len(names) != 1:
            have = ", ".join(names[:12]) or "no model that it names"
            raise UserError(f"{self.url} serves {have}; say which: --model NAME")
        self.model = names[0]
        return self.model

    def check_model(self) -> None:
        """A name that the server does not list is an error with the nearest; a server that lists nothing is trusted."""
        try:
            names = [str(m["id"]) for m in self._call("/models", None)["data"]]
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise UserError(self.told(error)) from None
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            raise UserError(self.told(error)) from None
        except (*_BROKEN, KeyError, TypeError):
            return
        if names and self.model not in names:
            raise unknown(f"model at {self.url}", self.model, names)

    def told(self, error: Exception) -> str:
        """A failure as a sentence."""
        if isinstance(error, urllib.error.HTTPError):
            said = message_of(error)
            if error.code in (401, 403):
                which = f"the key in {self.key_env}" if self.key_env else "a request without a key; name its variable"
                return f"{self.url} refused {which} ({error.code}: {said})"
            return f"{self.url} answered {error.code}: {said}"
        if isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError):
            return f"{self.url} did not answer within {self.timeout:g} s"
        if isinstance(error, urllib.error.URLError | ConnectionError):
            return f"nothing answers at {self.url} ({getattr(error, 'reason', error)}); is the server running?"
        return f"{self.url} sent something that is no chat completion ({error})"

    # ---- inside

    def _one(self, body: dict[str, Any]) -> Reply | NoReply:
        """One request with its retries."""
        for attempt in range(self.retries + 1):
            if self._down:
                break
            self._take_turn()
            try:
                reply = reply_of(self._call("/chat/completions", body))
            except _BROKEN as error:
                status = error.code if isinstance(error, urllib.error.HTTPError) else 0
                if not retriable(error) or attempt == self.retries:
                    return self._give_up(NoReply(self.told(error), status))
                self.retried += 1
                self.sleep(retry_after(error) or self.wait * 2**attempt)
            else:
                return self._count(reply)
        return self._give_up(NoReply(self._down))

    def _count(self, reply: Reply) -> Reply:
        with self._lock:
            self._in_a_row = 0
            self.tokens += reply.tokens
            self.prompt_tokens += reply.prompt_tokens
        return reply

    def _give_up(self, why: NoReply) -> NoReply:
        with self._lock:
            self.failed += 1
            self._in_a_row = 0 if why.status and not why.fatal else self._in_a_row + 1
            if self._in_a_row >= self.concurrency:
                self._down = why.why
        return why

    def _take_turn(self) -> None:
        """Wait until the rate allows another request."""
        with self._lock:
            self.requests += 1
            now = self.clock()
            at = max(self._next, now)
            self._next = at + (1 / self.rate if self.rate else 0.0)
        if at > now:
            self.sleep(at - now)

    def _call(self, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        """The JSON object that a path answers with; a POST where there is a body."""
        key = {"Authorization": f"Bearer {os.environ.get(self.key_env, '')}"} if self.key_env else {}
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, sent, {"Content-Type": "application/json", **key})
        with self._open.open(request, timeout=self.timeout) as reply:
            told = json.loads(reply.read(_LIMIT))
        if not isinstance(told, dict):
            raise ValueError(f"expected a JSON object, got {type(told).__name__}")
        return told


def base_url(url: str) -> str:
    """http://host:8000, .../v1 and .../v1/chat/completions all mean http://host:8000/v1."""
    plain = url.strip().rstrip("/").removesuffix("/chat/completions").rstrip("/")
    if not plain.startswith(("http://", "https://")) or not plain.partition("://")[2]:
        raise UserError(
            f"url is {url!r}; give the address of an OpenAI-compatible server, like http://127.0.0.1:8000/v1"
        )
    return plain if "/" in plain.partition("://")[2] else plain + "/v1"


def reply_of(told: dict[str, Any]) -> Reply:
    """The first choice of a chat completion; ValueError where it is none."""
    try:
        choice = told["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"no choices[0].message.content in {json.dumps(told)[:120]}") from None
    if text is not None and not isinstance(text, str):
        raise ValueError(f"the content is a {type(text).__name__}, expected a text")
    usage = told.get("usage") if isinstance(told.get("usage"), dict) else {}
    counts = [n if isinstance(n := (usage or {}).get(k), int) else 0 for k in ("completion_tokens", "prompt_tokens")]
    text = (text or "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a character is no text
    return Reply(text, str(choice.get("finish_reason") or "stop"), *counts)


def message_of(error: urllib.error.HTTPError) -> str:
    """What an error reply says, in one line of at most 200 letters."""
    try:
        body = error.read(_LIMIT).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        body = ""
    try:
        told = json.loads(body)
        inner = told.get("error", told) if isinstance(told, dict) else told
        body = str(inner.get("message", inner) if isinstance(inner, dict) else inner)
    except (ValueError, RecursionError):
        pass
    return " ".join(body.split())[:200] or error.reason


def retriable(error: Exception) -> bool:
    """Whether to retry: no response, an invalid one, too many requests, a server error."""
    return not isinstance(error, urllib.error.HTTPError) or error.code == 429 or error.code >= 500


def retry_after(error: Exception) -> float:
    """The seconds that the service asks for, at most a minute; 0 where it says nothing."""
    told = error.headers.get("Retry-After", "") if isinstance(error, urllib.error.HTTPError) and error.headers else ""
    return min(float(told), 60.0) if told.isdecimal() else 0.0
