"""A reward function called on answers, with a time limit per call: the same here and in a worker process (file_worker.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posttrain.rewards.runtime.conventions import Answers, Call, call_many, call_many_async
from posttrain.rewards.runtime.outcome import Outcome, as_number, listed
from posttrain.rewards.runtime.timeout_pool import EventLoop, Watch, run_items

_ASYNC = 8  # coroutines for each worker: they mostly wait


def sync_outcomes(
    call: Call, answers: Answers, timeout: float, workers: int, watch: Watch | None = None
) -> list[Outcome]:
    """What a synchronous reward says of each answer: a number, a Failure, or None where a TRL reward does not apply."""
    n = len(answers.texts)
    if call.kind != "one":
        return whole_outcomes(call, run_items(lambda _: call_many(call, answers), min(n, 1), timeout, 1, watch), n)
    raw = run_items(lambda i: call.fn(*answers.one(call, i)), n, timeout, workers, watch)
    return [as_number(x) for x in raw]


def begin_async(
    loop: EventLoop, call: Call, answers: Answers, timeout: float, workers: int, watch: Watch | None = None
) -> Callable[[], list[Outcome]]:
    """Begin an asynchronous reward; what is returned waits for its outcomes."""
    n = len(answers.texts)
    if call.kind != "one":
        wait = loop.start(lambda _: call_many_async(call, answers), min(n, 1), timeout, 1, watch)
        return lambda: whole_outcomes(call, wait(), n)
    one = call.fn
    wait = loop.start(lambda i: one(*answers.one(call, i)), n, timeout, workers * _ASYNC, watch)
    return lambda: [as_number(x) for x in wait()]


def whole_outcomes(call: Call, raw: list[Any], n: int) -> list[Outcome]:
    """The outcomes of a reward that took all answers in one call."""
    return listed(raw[0], n, call.kind == "trl") if raw else []
