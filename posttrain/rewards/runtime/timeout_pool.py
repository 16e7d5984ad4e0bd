"""Call untrusted functions in threads that are abandoned when late; failures are returned as values.

A first worker starts alone; when it is not through after a few milliseconds the others join it. So cheap rules pay for
one thread in all, and slow ones run side by side. Results come in the order of their index whatever finished first.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from math import ceil
from typing import Any, Protocol

from posttrain.rewards.runtime.outcome import Failure as Failure
from posttrain.rewards.runtime.outcome import caught as caught
from posttrain.rewards.runtime.outcome import late
from posttrain.rewards.runtime.prints import grading

AsyncCall = Callable[[int], Awaitable[Any]]
_ALONE = 0.005  # seconds the first worker runs by itself
_GRACE = 1.0  # seconds an event loop gets beyond its due time before it counts as blocked


class Watch(Protocol):
    """Is told, from whatever thread, when a call begins and what came of it; a worker process reports both to its parent."""

    def began(self, item: int) -> None: ...
    def ended(self, item: int, value: Any) -> None: ...


class Worker(threading.Thread):
    """A thread that takes the next index until there is none, or until it is given up on."""

    def __init__(self, results: Results) -> None:
        super().__init__(daemon=True)
        self.results, self.item, self.since, self.given_up = results, -1, 0.0, False
        self.late = False  # given up in the middle of a call

    def run(self) -> None:
        with grading():
            self.work()

    def work(self) -> None:
        while self.results.take(self):
            result: Any
            try:
                result = self.results.call(self.item)
            except KeyboardInterrupt as error:
                return self.results.stop(error)
            except BaseException as error:  # SystemExit too: a reward must not end a run
                result = caught(error)
            self.results.put(self, result)


class Results:
    """What has been taken, what is done, and by whom."""

    def __init__(self, call: Callable[[int], Any], n: int, watch: Watch | None = None) -> None:
        self.call, self.n, self.watch = call, n, watch
        self.values: list[Any] = [None] * n
        self.next = self.done = 0
        self.changed = threading.Condition()
        self.interrupt: KeyboardInterrupt | None = None

    def take(self, worker: Worker) -> bool:
        with self.changed:
            if worker.given_up or self.next >= self.n:
                worker.item = -1
                return False
            worker.item, worker.since = self.next, time.monotonic()
            self.next += 1
            if self.watch is not None:
                self.watch.began(worker.item)
            return True

    def put(self, worker: Worker, result: Any) -> None:
        with self.changed:
            if not worker.given_up:
                self.finish(worker.item, result)

    def finish(self, item: int, result: Any) -> None:
        self.values[item] = result
        if self.watch is not None:
            self.watch.ended(item, result)
        self.done += 1
        if self.done == self.n:
            self.changed.notify_all()

    def stop(self, error: KeyboardInterrupt) -> None:
        with self.changed:
            self.interrupt = error
            self.changed.notify_all()


def run_items(
    call: Callable[[int], Any], n: int, timeout: float, workers: int, watch: Watch | None = None
) -> list[Any]:
    """[call(0), ..., call(n - 1)], each a value or a Failure; a call later than `timeout` is left to its daemon thread.

    Only code that gives up the interpreter lock now and then can be timed out this way.
    """
    results = Results(call, n, watch)
    pool: list[Worker] = []

    def start() -> None:
        pool.append(Worker(results))
        pool[-1].start()

    try:
        with results.changed:
            if n:
                start()
                results.changed.wait(min(_ALONE, timeout))
            for _ in range(min(workers, n - results.next + 1) - 1 if results.done < n and not results.interrupt else 0):
                start()
            while results.done < n and results.interrupt is None:
                if _give_up_late(results, pool, timeout):
                    start()  # takes the place of the worker that was given up
                else:
                    results.changed.wait(_until_due(pool, timeout))
    finally:
        for worker in pool:
            worker.given_up = True
    if results.interrupt is not None:
        raise results.interrupt
    return results.values


def _give_up_late(results: Results, pool: list[Worker], timeout: float) -> bool:
    now = time.monotonic()
    for worker in pool:
        if not worker.given_up and worker.item >= 0 and now - worker.since >= timeout:
            worker.given_up = worker.late = True
            results.finish(worker.item, late(timeout))
            return results.done < results.n
    return False


def _until_due(pool: list[Worker], timeout: float) -> float:
    due = [worker.since for worker in pool if not worker.given_up and worker.item >= 0]
    return max(min(due, default=time.monotonic()) + timeout - time.monotonic(), 0.001)


class EventLoop:
    """One event loop in a thread of its own, kept from step to step so that clients may keep their connections."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.blocked = False  # some call never gave back the thread of a loop

    def start(
        self, call: AsyncCall, n: int, timeout: float, limit: int, watch: Watch | None = None
    ) -> Callable[[], list[Any]]:
        """Begin call(0..n-1), at most `limit` at a time; what is returned waits for the values and Failures."""
        results: list[Any] = [late(timeout)] * n
        due = time.monotonic() + timeout * ceil(n / limit) + _GRACE
        future = asyncio.run_coroutine_threadsafe(_gather(call, n, timeout, limit, results, watch), self.running())
        return lambda: self.wait(future, due, results)

    def wait(self, future: Future[None], due: float, results: list[Any]) -> list[Any]:
        """The results; a loop that some call blocks is left behind, and what it had not done is late."""
        try:
            future.result(max(due - time.monotonic(), 0))
        except Late:
            self.loop, self.blocked = None, True
        return list(results)

    def running(self) -> asyncio.AbstractEventLoop:
        if self.loop is None:
            self.loop = asyncio.new_event_loop()
            threading.Thread(target=self.loop.run_forever, daemon=True).start()
        return self.loop


async def _gather(call: AsyncCall, n: int, timeout: float, limit: int, results: list[Any], watch: Watch | None) -> None:
    gate = asyncio.Semaphore(limit)

    async def guarded(i: int) -> Any:
        try:
            return await call(i)
        except asyncio.CancelledError:  # the time is up; or the reward has raised it
            raise
        except BaseException as error:  # SystemExit too, which would end the loop and lose what the others are at
            return caught(error)

    async def one(i: int) -> None:
        async with gate:
            if watch is not None:
                watch.began(i)
            try:
                results[i] = await asyncio.wait_for(guarded(i), timeout)
            except TimeoutError:
                results[i] = late(timeout)
            except asyncio.CancelledError as error:  # nobody here cancels: a failed reward is data
                results[i] = caught(error)
            if watch is not None:
                watch.ended(i, results[i])

    with grading():
        await asyncio.gather(*(one(i) for i in range(n)))
