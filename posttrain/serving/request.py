"""A request as its thread and the model's thread share it: written by one, waited on by the other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.inference.jobs import Job


class Full(Exception):
    """Too many answers are being made or waited for."""


@dataclass(frozen=True)
class Made:
    """What there is of an answer."""

    tokens: list[int]
    logp: list[float]
    done: bool = False
    stopped: bool = False


class Ticket:
    """One request: its jobs, and what has been made of each. `gone` once nobody waits for it any more."""

    def __init__(self, jobs: Sequence[Job], streams: bool = False) -> None:
        self.jobs, self.streams = list(jobs), streams
        self.made = [Made([], []) for _ in jobs]
        self.error: Exception | None = None
        self.gone = False
        self.version = 0
        self._news = threading.Condition()

    @property
    def done(self) -> bool:
        return self.error is not None or all(m.done for m in self.made)

    @property
    def length(self) -> int:
        """Places that its longest answer may take."""
        return max(len(j.context) + j.how.max_tokens for j in self.jobs)

    def wait(self, seen: int, seconds: float) -> int:
        """Until there is more than version `seen`, or time is up; returns the version there is."""
        with self._news:
            self._news.wait_for(lambda: self.version > seen, seconds)
            return self.version

    def write(self, made: dict[int, Made], error: Exception | None = None) -> None:
        with self._news:
            for i, one in made.items():
                self.made[i] = one
            self.error = self.error or error
            self.version += 1
            self._news.notify_all()
