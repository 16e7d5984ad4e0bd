"""Rewards of single answers, begun as each answer ends, while others are still being sampled.

What is begun here is what `run_items` would have called later, with the same time limit; results are taken in the order of the
answers, whatever finished first.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from typing import Any

from posttrain.rewards.runtime.outcome import caught, late
from posttrain.rewards.runtime.prints import grading


class Item:
    """One call: waiting, running, done, or given up."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None
        self.began = 0.0
        self.done = threading.Event()
        self.given_up = False


class Ahead:
    """Calls by key, run by a few daemon threads; a call later than `timeout` is left to its thread, and another one started."""

    def __init__(self, timeout: float, workers: int) -> None:
        self.timeout, self.workers = timeout, workers
        self.items: dict[Hashable, deque[Item]] = defaultdict(deque)
        self.queue: deque[Item] = deque()
        self.changed = threading.Condition()
        self.threads = self.idle = 0

    def begin(self, key: Hashable, call: Callable[[], Any]) -> None:
        """Call it as soon as a thread is free."""
        item = Item(call)
        with self.changed:
            self.items[key].append(item)
            self.queue.append(item)
            if self.idle < len(self.queue) and self.threads < self.workers:
                self._start()
            self.changed.notify()

    def take(self, key: Hashable) -> Item | None:
        """The next call that was begun for this key, if any; wait for it with `result`."""
        found = self.items.get(key)
        return found.popleft() if found else None

    def result(self, item: Item) -> Any:
        """Its value or Failure; its time counts from when it began to run."""
        while not item.done.is_set():
            if item.began and (left := item.began + self.timeout - time.monotonic()) <= 0:
                with self.changed:
                    if item.done.is_set():
                        break
                    item.given_up = True
                    self._start()  # takes the place of the thread that is stuck
                return late(self.timeout)
            item.done.wait(min(left, 1.0) if item.began else 0.05)
        if isinstance(item.result, KeyboardInterrupt):
            raise item.result
        return item.result

    def forget(self) -> None:
        """Drop what nobody took: answers that were not kept."""
        with self.changed:
            self.items.clear()
            self.queue.clear()

    def _start(self) -> None:
        self.threads += 1
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self.changed:
                self.idle += 1
                while not self.queue:
                    if not self.changed.wait(10.0) and not self.queue:
                        self.idle -= 1
                        self.threads -= 1
                        return
                self.idle -= 1
                item = self.queue.popleft()
                item.began = time.monotonic()
            try:
                with grading():
                    item.result = item.call()
            except KeyboardInterrupt as error:
                item.result = error
            except BaseException as error:  # SystemExit too: a reward must not end a run
                item.result = caught(error)
            with self.changed:
                item.done.set()
                if item.given_up:
                    self.threads -= 1
                    return
