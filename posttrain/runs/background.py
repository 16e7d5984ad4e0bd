"""One piece of work at a time in a thread beside training: the writing of a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable

_STARTED = 5.0  # seconds in which a thread has begun


class Background:
    """`start` waits for the work before it; an error comes out at the next `check`, `wait` or `start`, on the main thread."""

    def __init__(self) -> None:
        self.done = (
            threading.Event()
        )  # not Thread.join: interrupted by Ctrl-C, that calls a thread ended that still runs (bpo-45274)
        self.done.set()
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        self.wait()

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.error = error
            finally:
                self.done.set()

        self.thread = threading.Thread(target=guarded, name="checkpoint", daemon=True)
        self.done.clear()
        try:
            self.thread.start()
        except RuntimeError:  # no thread can be had
            self.done.set()
            raise

    @property
    def busy(self) -> bool:
        return not self.done.is_set()

    def check(self) -> None:
        """Raise what the work raised."""
        if self.error is not None and not self.busy:
            error, self.error = self.error, None
            raise error

    def wait(self) -> None:
        """Until the work is done."""
        while not self.done.wait(_STARTED):
            if self.thread is None or self.thread.ident is None:  # interrupted before it began
                self.done.set()
        self.check()
