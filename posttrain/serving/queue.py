"""Requests from many threads, one model: a thread that owns the engine, and tickets on which the others wait.

Jobs of all requests run together in the native engine; after each turn what has been made so far is written on the tickets.
Models that the native engine does not know are served one request after the other, each whole.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.models.decoder import Decoder
from posttrain.serving.backends import Native, Plain
from posttrain.serving.request import Full, Ticket


class Queue(threading.Thread):
    """Lets tickets in as they come, runs the model while there is work, and never ends because of a request."""

    def __init__(self, policy: Any, slots: int = 0, most: int = 256) -> None:
        super().__init__(name="posttrain-queue", daemon=True)
        policy.eval()
        native = isinstance(policy.model, Decoder)
        self.maker: Native | Plain = Native(policy, slots) if native else Plain(policy)
        self.most = most  # answers that may be made or waited for at a time
        self.inbox: deque[Ticket] = deque()
        self.live: list[Ticket] = []
        self.broken: Exception | None = None
        self._closing = False
        self._news = threading.Condition()

    def submit(self, ticket: Ticket) -> Ticket:
        with self._news:
            if self._closing or self.broken:
                raise Full(f"the server is ending ({self.broken or 'it was stopped'})")
            if len(ticket.jobs) > self.most:
                raise UserError(f"{len(ticket.jobs)} answers in one request; this server makes at most {self.most}")
            if self.load + len(ticket.jobs) > self.most:
                raise Full(f"{self.load} answers are being made or waited for, of {self.most}; try again in a moment")
            self.inbox.append(ticket)
            self._news.notify()
        return ticket

    @property
    def load(self) -> int:
        """Answers that are not done."""
        return sum(not m.done for t in (*self.inbox, *self.live) for m in t.made)

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for it any more: its slots are free after the next turn."""
        ticket.gone = True

    def close(self) -> None:
        with self._news:
            self._closing = True
            self._news.notify()
        if self.is_alive():
            self.join()

    # ---- the thread

    @torch.no_grad()
    def run(self) -> None:
        device = self.maker.policy.device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # every thread has one of its own
        while self._wait():
            try:
                self._work()
            except Exception as error:  # a request must not end the server
                self._fail(error)
        self._end(Full("the server was stopped"))

    def _wait(self) -> bool:
        with self._news:
            self._news.wait_for(lambda: self._closing or self.live or self.inbox)
            return not self._closing and self.broken is None

    def _work(self) -> None:
        self._let_in()
        for ticket in [t for t in self.live if t.gone]:
            self.maker.drop(ticket)
        if self.live:
            self.maker.turn()
        with self._news:
            self.live = [t for t in self.live if not t.done]

    def _let_in(self) -> None:
        """In order; who needs more room than there is waits until nothing runs, and so do those behind."""
        while self.inbox:
            ticket = self.inbox[0]
            try:
                if not ticket.gone and not self.maker.ready(ticket, idle=not self.live):
                    return
            except Exception as error:
                ticket.write({}, readable(error))
            with self._news:
                self.inbox.popleft()
                if ticket.gone or ticket.done:
                    continue
                self.live.append(ticket)
            self.maker.add(ticket)

    def _fail(self, error: Exception) -> None:
        try:
            self.maker.clear()
        except Exception as worse:  # a GPU in a state of error answers nothing any more
            self.broken = worse
        with self._news:
            failed, self.live = self.live, []
        for ticket in failed:
            ticket.write({}, readable(error))

    def _end(self, error: Exception) -> None:
        with self._news:
            failed = [*self.live, *self.inbox]
            self.live.clear()
            self.inbox.clear()
        for ticket in failed:
            ticket.write({}, error)


def readable(error: Exception) -> Exception:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return UserError("the device has no room for a request of this length; ask for fewer max_tokens")
    return error
