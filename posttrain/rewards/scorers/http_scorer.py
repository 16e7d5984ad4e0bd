"""A scoring service over HTTP as a reward: batched, cached, retried, limited in rate, and left alone while it is down."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Sequence

from posttrain.core.errors import UserError
from posttrain.core.registry import reward
from posttrain.core.types import Prompt
from posttrain.policies.chat_api import Stay, retriable, retry_after

_LIMIT = 16 * 2**20  # bytes of an answer that are read


class Down(Exception):
    """The service did not answer, and will not be asked again for a while."""


@reward(title="HTTP scorer", paper="arXiv:2503.08716")
class http_scorer:
    """HTTP scorer: rewards from an external service.

    POST {"items": [{"prompt": ..., "text": ...}]} -> {"scores": [...]}, `batch` items per request, `rate` requests per second
    A request that fails (no answer, 429, 5xx) is tried `retries` times more, after wait, 2 wait, 4 wait... seconds, or what
    Retry-After says. Then its answers are NaN: masked, never worth 0. After `patience` failed requests in a row the service
    is left alone for `rest` seconds. Scores are kept by (prompt, text). token_env: the environment variable that holds a
    bearer token. The run's --reward-timeout is for a step's whole batch, retries included.
    """

    def __init__(
        self, url: str = "", batch: int = 32, timeout: float = 10.0, retries: int = 3, wait: float = 0.5,
        rate: float = 10.0, patience: int = 5, rest: float = 30.0, keep: int = 100_000, token_env: str = "",
        sleep: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        ready(url, token_env)
        self.url, self.batch, self.timeout, self.retries, self.wait, self.rate = (
            url,
            batch,
            timeout,
            retries,
            wait,
            rate,
        )
        self.patience, self.rest, self.keep, self.token_env = patience, rest, keep, token_env
        self.sleep, self.clock = sleep, clock
        self.known: OrderedDict[tuple[str, str], float] = OrderedDict()
        self.requests, self.hits, self.failed = 0, 0, 0  # sent, answered from memory, given up
        self._in_a_row, self._closed_until, self._next = 0, -math.inf, -math.inf
        self._lock = threading.Lock()  # a call that came too late for its step may still be running
        self._open = urllib.request.build_opener(Stay)

    def __call__(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> list[float]:
        keys = [(p.last, t) for p, t in zip(prompts, texts, strict=True)]
        with self._lock:
            fresh = list(dict.fromkeys(k for k in keys if k not in self.known))
            self.hits += len(keys) - len(fresh)
            got: dict[tuple[str, str], float] = {}
            for start in range(0, len(fresh), self.batch):
                some = fresh[start : start + self.batch]
                got |= dict(zip(some, self._scores(some), strict=True))
            out = [got[k] if k in got else self.known[k] for k in keys]
            self._remember(keys, out)
        return out

    def _remember(self, keys: list[tuple[str, str]], scores: list[float]) -> None:
        for k, x in zip(keys, scores, strict=True):
            if not math.isnan(x):
                self.known[k] = x
                self.known.move_to_end(k)
        while len(self.known) > self.keep:
            self.known.popitem(last=False)

    def _scores(self, items: list[tuple[str, str]]) -> list[float]:
        """One request with its retries; NaN for all of them where it failed for good."""
        for attempt in range(self.retries + 1):
            try:
                return self._ask(items)
            except Down:
                break
            except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
                if not retriable(error) or attempt == self.retries:
                    break
                self.sleep(retry_after(error) or self.wait * 2**attempt)
        self.failed += len(items)
        return [math.nan] * len(items)

    def _ask(self, items: list[tuple[str, str]]) -> list[float]:
        if self.clock() < self._closed_until:
            raise Down
        self.sleep(max(self._next - self.clock(), 0.0))
        self._next = self.clock() + 1 / self.rate
        body = json.dumps({"items": [{"prompt": p, "text": t} for p, t in items]}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json", **self._token()})
        self.requests += 1
        try:
            with self._open.open(request, timeout=self.timeout) as reply:
                scores = parse(reply.read(_LIMIT), len(items))
        except Exception:
            self._in_a_row += 1
            if self._in_a_row >= self.patience:
                self._in_a_row, self._closed_until = 0, self.clock() + self.rest
            raise
        self._in_a_row = 0
        return scores

    def _token(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {os.environ[self.token_env]}"} if self.token_env else {}


def parse(body: bytes, n: int) -> list[float]:
    """The scores of a reply; ValueError unless they are n numbers (one that is not finite is NaN)."""
    told = json.loads(body)
    scores = told.get("scores") if isinstance(told, dict) else None
    if not isinstance(scores, list) or len(scores) != n:
        raise ValueError(f"expected {n} scores")
    return [float(x) if isinstance(x, int | float) and math.isfinite(x) else math.nan for x in scores]


def ready(url: str = "", token_env: str = "", **_: object) -> None:
    """Refuse an address that is none and a token that is not there before a run starts."""
    if not url.startswith(("http://", "https://")):
        raise UserError(
            f"url is {url!r}; give the address of a scoring service: http-scorer(url='http://host:8000/score')"
        )
    if token_env and not os.environ.get(token_env):
        raise UserError(
            f"token_env names {token_env!r}, but there is no such environment variable; export {token_env}=..."
        )
