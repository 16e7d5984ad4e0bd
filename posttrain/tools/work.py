"""Work of tools beside the event loop: a thread for each piece, left behind when it is late, so that no pool fills up with stuck ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T], seconds: float) -> T:
    """What `work` returns or raises; a TimeoutError when that takes longer. Its thread does not keep the program alive."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as problem:
            error = problem if isinstance(problem, Exception) else RuntimeError(f"{type(problem).__name__}: {problem}")
        with suppress(RuntimeError):  # the loop has ended without it
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(seconds):  # not wait_for, which may forget that it was cancelled
        return await done
