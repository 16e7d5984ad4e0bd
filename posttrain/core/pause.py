"""Stopping a run before its end: SIGTERM (Slurm, spot machines) or a time limit. The step in progress is finished and saved."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from posttrain.core.errors import UserError

_SAME = 2.0  # seconds in which a second signal is the first again: a scheduler tells all processes, and what started them passes it on


class Paused(Exception):
    """The run was stopped before its end, and the same command goes on with it. The message says why."""


class Pause:
    """Asked after every step whether to stop there: a signal has come, or the next step would end after the time limit.

    The limit is of this process, not of the run; at least one step is done, so that a run given the same limit again gets on.
    """

    def __init__(self, hours: float | None = None) -> None:
        if hours is not None and not (math.isfinite(hours) and hours > 0):
            raise UserError(f"--max-hours is {hours}; it is a time in hours, such as 3.5")
        self.hours, self.began = hours, time.monotonic()
        self.why = ""
        self._told: float | None = None  # when a signal came
        self.stepping = False  # in a step, which is finished first; elsewhere nothing is lost by stopping at once
        self._last, self._longest = self.began, 0.0

    def begin(self) -> None:
        """A loop of steps begins."""
        self.stepping, self._last = True, time.monotonic()

    def end(self) -> None:
        self.stepping = False

    def due(self) -> str:
        """Why the run should stop after the step that has just been done; empty to go on."""
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        if not self.why and self.hours is not None and now + self._longest - self.began > 3600 * self.hours:
            self.why = f"the time limit of {self.hours:g} hours is reached"
        return self.why

    def left(self) -> float:
        """Hours until the limit."""
        return math.inf if self.hours is None else self.hours - (time.monotonic() - self.began) / 3600

    @contextmanager
    def listening(self) -> Iterator[Pause]:
        """SIGTERM asks for a pause; a second one does not wait for the step. Signals reach the main thread only."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = signal.signal(signal.SIGTERM, self._signalled)
        try:
            yield self
        finally:
            signal.signal(signal.SIGTERM, before)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        from posttrain.core.ranks import ranks  # here: it needs torch, and who lists runs does not

        now, before = time.monotonic(), self._told
        if self.stepping and ranks().world > 1 and before is not None and now - before < _SAME:
            return
        self._told = now
        again, self.why = bool(self.why), "it was asked to stop (SIGTERM)"
        if again or not self.stepping:
            raise Paused(self.why)
