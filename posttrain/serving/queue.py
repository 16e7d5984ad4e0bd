"""Requests from many clients, one model: a thread that owns the engine, and requests on which the clients' tasks wait.

Jobs of all requests run together in the native engine; after each of its steps the requests get their progress. Models that the
native engine does not support are served one request after another, each when it is complete.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import torch

from posttrain.core.errors import UserError
from posttrain.models.decoder import Decoder
from posttrain.serving.backends import NativeBackend, PlainBackend
from posttrain.serving.request import QueueFull, Request

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy


class Queue(threading.Thread):
    """Admits requests in order and runs the model while there is work; no error of a request ends the thread.

    slots: answers that run at a time (0: the backend's default); max_queued: answers that run or wait at a time
    """

    def __init__(self, policy: LanguagePolicy, slots: int = 0, max_queued: int = 256) -> None:
        super().__init__(name="posttrain-queue", daemon=True)
        policy.eval()
        native = isinstance(policy.model, Decoder)
        self.backend: NativeBackend | PlainBackend = NativeBackend(policy, slots) if native else PlainBackend(policy)
        self.max_queued = max_queued
        self.inbox: deque[Request] = deque()
        self.live: list[Request] = []
        self.broken: Exception | None = None  # an error that the backend did not recover from
        self._closing = False
        self._changed = threading.Condition()

    def submit(self, request: Request) -> Request:
        with self._changed:
            self.check(len(request.jobs))
            self.inbox.append(request)
            self._changed.notify()
        return request

    def check(self, answers: int) -> None:
        """Raises where a request of so many answers cannot be taken now."""
        with self._changed:
            waiting = [
                r for i, r in enumerate(self.inbox) if i == 0 or not r.cancelled
            ]  # the first may be being admitted
            self.inbox = deque(waiting)  # no place is kept for clients that have left
            load, ending = self.load, self._closing or self.broken is not None
        if ending:
            raise QueueFull(f"the server is ending ({self.broken or 'it was stopped'})")
        if load and load + answers > self.max_queued:
            raise QueueFull(f"{load} answers are being made or waited for, of {self.max_queued}; try again in a moment")

    @property
    def load(self) -> int:
        """Answers that are not done."""
        with self._changed:
            requests = [*self.inbox, *self.live]
        return sum(not p.done for r in requests for p in r.progress)

    def stop(self) -> None:
        """Requests that are not done end with an error, at once for their clients and soon for the model."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            requests = [*self.inbox, *self.live]
        for request in requests:
            request.update({}, QueueFull("the server was stopped"))
            request.cancelled = True

    def close(self) -> None:
        self.stop()
        if self.is_alive():
            self.join()

    # ---- the thread

    @torch.no_grad()
    def run(self) -> None:
        device = self.backend.policy.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # the current device is per thread
        while self._wait():
            try:
                self._work()
            except Exception as error:  # a request must not end the server
                self._fail(error)
        self._end(QueueFull("the server was stopped"))

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self.live or self.inbox)
            return not self._closing and self.broken is None

    def _work(self) -> None:
        self._admit()
        for request in [r for r in self.live if r.cancelled]:
            self.backend.abort(request)
        if self.live:
            self.backend.step()
        with self._changed:
            self.live = [r for r in self.live if not r.done]

    def _admit(self) -> None:
        """In order: a request that needs longer slots waits until nothing runs, and so do those behind it."""
        while self.inbox:
            request = self.inbox[0]
            try:
                if not request.cancelled and not self.backend.can_admit(request, idle=not self.live):
                    return
            except Exception as error:
                request.update({}, readable(error))
            with self._changed:
                self.inbox.popleft()
                if request.cancelled or request.done:
                    continue
                self.live.append(request)
            self.backend.add(request)

    def _fail(self, error: Exception) -> None:
        try:
            self.backend.clear()
        except Exception as worse:  # after some CUDA errors every further call fails
            self.broken = worse
        with self._changed:
            failed, self.live = self.live, []
        for request in failed:
            request.update({}, readable(error))

    def _end(self, error: Exception) -> None:
        with self._changed:
            failed = [*self.live, *self.inbox]
            self.live.clear()
            self.inbox.clear()
        for request in failed:
            request.update({}, error)


def readable(error: Exception) -> Exception:
    """Out-of-memory errors as a sentence; other errors as they are."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return UserError("the device has no room for a request of this length; ask for fewer max_tokens")
    return error
