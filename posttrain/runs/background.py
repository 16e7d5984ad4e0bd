"""One piece of work at a time in a thread beside training: the writing of a checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """`start` waits for the work before it; an error comes out at the next `check`, `wait` or `start`, on the main thread."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        self.wait()

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=guarded, name="checkpoint", daemon=True)
        self.thread.start()

    @property
    def busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def check(self) -> None:
        """Raise what the work raised."""
        if self.error is not None and not self.busy:
            error, self.error = self.error, None
            raise error

    def wait(self) -> None:
        """Until the work is done."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        self.check()
