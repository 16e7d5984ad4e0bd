"""One thread that does a store's writing in order, so that a step does not wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_AHEAD = 8  # jobs that may wait: a disk that is slower than the steps holds them up, and memory stays bounded


class Writer:
    """Jobs run one after another. The first error ends them: later jobs are dropped, and every later call raises that error."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "posttrain-store")
        self._room = threading.BoundedSemaphore(_AHEAD)
        self.error: BaseException | None = None
        self.told = False

    def put(self, job: Callable[[], None]) -> Future[None]:
        """Queue a job; waits while there is no room."""
        self.check()
        self._room.acquire()
        return self._pool.submit(self._run, job)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            if self.error is None:
                job()
        except BaseException as error:  # told by the next call, in the thread that can end the run
            self.error = error
        finally:
            self._room.release()

    def check(self) -> None:
        """Raise the error that has ended the writing."""
        if self.error is not None:
            self.told = True
            raise self.error

    def wait(self, job: Callable[[], None]) -> None:
        """Do a job and all those before it."""
        self.put(job).result()
        self.check()

    def drain(self) -> None:
        """Wait until everything put so far is written."""
        self.wait(_nothing)

    def close(self) -> None:
        """Write what is left; an error that nobody has been told of is raised."""
        self._pool.shutdown(wait=True)
        if not self.told:
            self.check()


def _nothing() -> None:
    pass
