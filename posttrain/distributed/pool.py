"""A pool of workers that may die: each task is done once, by whoever is free.

A worker that dies, or says nothing until its deadline, is replaced, and its task is given out again; after three deaths on one task the
run ends with a sentence that names it. Workers keep nothing but weights, so none is missed.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from posttrain.core.errors import UserError

T = TypeVar("T")
Message = Callable[[], bytes] | None  # made when somebody is free: it may name weights that are newer by then
DEATHS = 3  # of workers on one task, or at the start of one worker, before it is given up
OK, MISTAKE, ERROR = b"=", b"!", b"?"  # the first byte of a reply: a result, a sentence for the user, a traceback
REFUSED = b"~"  # the weights could not be taken from memory (direct.py): the worker has none now


class Died(Exception):
    """A worker is gone; the message says how it ended."""


class NotTaken(Exception):
    """Weights did not come from memory; the message says why."""


class Lost(UserError):
    """A task that workers died on, as often as is tried; `why` says how the last one ended."""

    def __init__(self, told: str, why: str) -> None:
        super().__init__(told)
        self.why = why


class Handle(Protocol):
    """A worker as the pool sees it: it is started at the first `start` and again after it died."""

    def start(self) -> bytes:
        """Wait until it is ready; its reply, with its first byte. Nothing happens where it is."""

    def ask(self, message: bytes, timeout: float) -> bytes:
        """Its reply; Died where it ends or says nothing in time (then it is killed)."""

    def kill(self) -> None: ...


@dataclass(order=True)
class Task:
    """What a worker is asked, in the order of need."""

    order: tuple[int, ...]
    number: int
    message: Message = field(compare=False)  # None: wake up, there is nothing to do
    what: str = field(compare=False)  # in the words of an error: "shard 3 of step 7 (prompts ...)"
    future: Future[bytes] = field(compare=False, default_factory=Future)
    timeout: float = field(compare=False, default=0.0)
    deaths: int = field(compare=False, default=0)


class Pool:
    """Workers, each served by a thread of its own."""

    rest = 30.0  # seconds before a worker that could not be had is tried again

    def __init__(self, handles: list[Handle], timeout: float, deaths: int = DEATHS) -> None:
        self.handles, self.timeout, self.deaths = handles, timeout, deaths
        self.tasks: queue.PriorityQueue[Task] = queue.PriorityQueue()
        self.numbers = itertools.count()
        self.replaced = 0  # workers that died so far
        self.broken: BaseException | None = None
        self.alive: set[int] = set()  # handles whose worker has begun
        self.over = threading.Event()
        self.lock = threading.Lock()
        for i, handle in enumerate(handles):
            threading.Thread(target=self._serve, args=(handle,), name=f"worker {i}", daemon=True).start()

    @property
    def closed(self) -> bool:
        return self.over.is_set()

    def submit(
        self, order: tuple[int, ...], message: bytes | Callable[[], bytes], what: str, timeout: float = 0.0
    ) -> Future[bytes]:
        """The reply of whoever is free first; tasks of a lower order go first. timeout: 0 for the pool's own."""
        made = message if callable(message) else lambda: message
        task = Task(order, next(self.numbers), made, what, timeout=timeout or self.timeout)
        self._put(task)
        return task.future

    def _put(self, task: Task) -> None:
        with self.lock:
            if self.broken is None:
                self.tasks.put(task)
                return
        if not task.future.done():
            task.future.set_exception(self.broken)

    def _serve(self, handle: Handle) -> None:
        """One worker for as long as the pool is open."""
        while not self.closed and self.broken is None and self._started(handle):
            task = self.tasks.get()
            if task.message is None:
                return
            if not self._started(handle):  # it may have died while there was nothing to do
                self._put(task)
                return
            try:
                reply = handle.ask(task.message(), task.timeout)
            except Died as why:
                self.alive.discard(id(handle))
                self._again(task, why)
            except Exception as error:  # of making the message, or a fault here: who waits must not wait for ever
                task.future.set_exception(error)
            else:
                answer(task, reply)

    def _started(self, handle: Handle) -> bool:
        """Start the worker; what it says against starting is said to everybody who waits. One that cannot be had while others work is
        tried again later: a machine may come back."""
        for tried in itertools.count(1):
            try:
                reply = handle.start()
            except Died as why:
                self.alive.discard(id(handle))
                if self.closed or not self._wait(tried, why):
                    return False
                continue
            except Exception as error:  # of the machine that should start it: who waits must not wait for ever
                self._break(_unstarted(error))
                return False
            if reply[:1] == OK:
                self.alive.add(id(handle))
                return True
            self._break(failure(reply))
            return False
        raise AssertionError("count ends")

    def _wait(self, tried: int, why: Died) -> bool:
        """After a worker died at its start: whether to try again."""
        if tried % DEATHS:
            return True
        if not self.alive:
            self._break(UserError(f"a worker died {tried} times before it had begun ({why}); what it printed says why"))
            return False
        print(f"warning: a worker {why} before it had begun; {len(self.alive)} others go on", file=sys.stderr)
        return not self.over.wait(self.rest)

    def _again(self, task: Task, why: Died) -> None:
        """Give a task out again; or give it up."""
        if self.closed:
            task.future.set_exception(why)
            return
        self.replaced, task.deaths = self.replaced + 1, task.deaths + 1
        if task.deaths < self.deaths:
            print(f"warning: a worker {why} on {task.what}; it is replaced, its work is done again", file=sys.stderr)
            self._put(task)
            return
        told = (
            f"{task.deaths} workers ended on {task.what}, the last one {why}; look at these prompts and at the memory that is "
            "free, then give the same command again to go on"
        )
        task.future.set_exception(Lost(told, str(why)))

    def _break(self, error: BaseException) -> None:
        """No worker can be had: everybody who waits is told."""
        with self.lock:
            self.broken = self.broken or error
        self._drop(self.broken)

    def _drop(self, error: BaseException) -> None:
        while True:
            try:
                task = self.tasks.get_nowait()
            except queue.Empty:
                break
            if task.message is not None:
                task.future.set_exception(error)
        for _ in self.handles:  # wake the threads that wait for a task
            self.tasks.put(Task((), next(self.numbers), None, ""))

    def close(self) -> None:
        """End every worker; what nobody has done is cancelled."""
        self.over.set()
        with self.lock:
            self.broken = self.broken or Died("the pool was closed")
        self._drop(self.broken)
        for handle in self.handles:
            handle.kill()


def answer(task: Task, reply: bytes) -> None:
    """A reply to who waits for it."""
    if reply[:1] == OK:
        task.future.set_result(reply[1:])
    else:
        task.future.set_exception(failure(reply))


def failure(reply: bytes) -> Exception:
    """What went wrong in a worker: a mistake of the user's in one sentence, or an error with its trace."""
    told = reply[1:].decode(errors="replace")
    return UserError(told) if reply[:1] == MISTAKE else RuntimeError(f"in a worker:\n{told}")


def _unstarted(error: Exception) -> Exception:
    """Why this machine, or the cluster, starts no worker."""
    if isinstance(error, OSError):
        return UserError(
            f"a worker could not be started ({error}); use fewer workers, or free memory, processes or open files"
        )
    return error


def then(future: Future[bytes], use: Callable[[bytes], T]) -> Future[T]:
    """What becomes of a reply, in the thread that got it; nobody sees the one before the other is done."""
    out: Future[T] = Future()

    def work(found: Future[bytes]) -> None:
        try:
            out.set_result(use(found.result()))
        except BaseException as error:
            out.set_exception(error)

    future.add_done_callback(work)
    return out
