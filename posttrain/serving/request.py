"""A request as the thread of its client and the model's thread share it: updated by one, waited on by the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.inference.jobs import Job


class QueueFull(Exception):
    """Too many answers are being generated or waited for."""


@dataclass(frozen=True)
class Progress:
    """What has been generated of one answer."""

    tokens: list[int]
    logp: list[float]  # of each token
    done: bool = False
    stopped: bool = False  # ended by a stop token or stop string, not by the limit


class Request:
    """The jobs of one request and the progress of each; `cancelled` once no client waits for it any more."""

    def __init__(self, jobs: Sequence[Job], stream: bool = False) -> None:
        self.jobs, self.stream = list(jobs), stream
        self.progress = [Progress([], []) for _ in jobs]
        self.error: Exception | None = None
        self.cancelled = False
        self.version = 0  # number of updates so far
        self._updated = threading.Condition()

    @property
    def done(self) -> bool:
        return self.error is not None or all(p.done for p in self.progress)

    @property
    def max_len(self) -> int:
        """Positions that its longest answer may take, prompt included."""
        return max(len(j.context) + j.how.max_tokens for j in self.jobs)

    def wait(self, seen: int, seconds: float) -> int:
        """Wait until the version is above `seen`, at most so many seconds; returns the current version."""
        with self._updated:
            self._updated.wait_for(lambda: self.version > seen, seconds)
            return self.version

    def update(self, progress: dict[int, Progress], error: Exception | None = None) -> None:
        """New progress of some answers, by index."""
        with self._updated:
            for i, one in progress.items():
                self.progress[i] = one
            self.error = self.error or error
            self.version += 1
            self._updated.notify_all()
