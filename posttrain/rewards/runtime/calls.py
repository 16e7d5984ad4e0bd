"""A reward function called on answers, with a time limit per call: the same here and in a worker process (file_worker.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posttrain.rewards.runtime.conventions import Answers, Call, call_many, call_many_async
from posttrain.rewards.runtime.outcome import Failure, Outcome, as_number, listed
from posttrain.rewards.runtime.timeout_pool import EventLoop, Watch, run_items

_ASYNC = 8  # coroutines for each worker: they mostly wait


def sync_outcomes(
    call: Call, answers: Answers, timeout: float, workers: int, watch: Watch | None = None
) -> list[Outcome]:
    """What a synchronous reward says of each answer: a number, a Failure, or None where a TRL reward does not apply."""
    n = len(answers.texts)
    if call.kind != "one":
        raw = run_items(lambda _: listed_of(call, call_many(call, answers), n), min(n, 1), timeout, 1, watch)
        return spread(raw, n)
    return run_items(lambda i: as_number(call.fn(*answers.one(call, i))), n, timeout, workers, watch)


def begin_async(
    loop: EventLoop, call: Call, answers: Answers, timeout: float, workers: int, watch: Watch | None = None
) -> Callable[[], list[Outcome]]:
    """Begin an asynchronous reward; what is returned waits for its outcomes."""
    n = len(answers.texts)

    async def many(_: int) -> list[Outcome]:
        return listed_of(call, await call_many_async(call, answers), n)

    async def one(i: int) -> Outcome:
        return as_number(await call.fn(*answers.one(call, i)))

    if call.kind == "one":
        return loop.start(one, n, timeout, workers * _ASYNC, watch)
    wait = loop.start(many, min(n, 1), timeout, 1, watch)
    return lambda: spread(wait(), n)


def listed_of(call: Call, returned: Any, n: int) -> list[Outcome]:
    """What a reward returned, as outcomes: in the thread of the call, because the methods of a returned object are the user's
    code too, and may hang or end Python."""
    return listed(returned, n, call.kind == "trl")


def spread(raw: list[Any], n: int) -> list[Outcome]:
    """The outcomes of a reward that took all answers in one call: what failed has failed for each of them."""
    return [raw[0]] * n if raw and isinstance(raw[0], Failure) else raw[0] if raw else []
