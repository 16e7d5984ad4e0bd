"""A request as its client's task and the model's thread share it: updated by one, waited on by the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.inference.jobs import Job


class QueueFull(Exception):
    """Too many answers are being generated or waited for."""


@dataclass(frozen=True)
class Progress:
    """What has been generated of one answer."""

    tokens: list[int]
    logp: list[float]  # of each token; fewer while some are not known yet
    done: bool = False
    stopped: bool = False  # ended by a stop token or stop string, not by the limit


class Request:
    """The jobs of one request and the progress of each; `cancelled` once no client waits for it any more."""

    def __init__(self, jobs: Sequence[Job], stream: bool = False) -> None:
        self.jobs, self.stream = list(jobs), stream
        self.progress = [Progress([], []) for _ in jobs]
        self.error: Exception | None = None
        self.cancelled = False
        self._listener: Callable[[], None] | None = None
        self._lock = threading.Lock()

    @property
    def done(self) -> bool:
        return self.error is not None or all(p.done for p in self.progress)

    @property
    def max_len(self) -> int:
        """Positions that its longest answer may take, prompt included."""
        return max(len(j.context) + j.how.max_tokens for j in self.jobs)

    def updates(self) -> asyncio.Event:
        """An event of the running loop that is set after every update, and now."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        event.set()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:  # the loop has ended, and its clients with it
                self.cancelled = True

        with self._lock:
            self._listener = tell
        return event

    def update(self, progress: dict[int, Progress], error: Exception | None = None) -> None:
        """New progress of some answers, by index."""
        with self._lock:
            for i, one in progress.items():
                self.progress[i] = one
            self.error = self.error or error
            tell = self._listener
        if tell is not None:
            tell()
