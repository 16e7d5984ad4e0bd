"""When a run stops before its end: a signal, a second one, a time limit that looks one step ahead."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from posttrain.core import pause as module
from posttrain.core.errors import UserError
from posttrain.core.pause import Pause, Paused
from posttrain.core.ranks import Alone, use


def test_a_signal_waits_for_the_step_and_a_second_one_does_not() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Pause().listening() as pause:
        pause.begin()
        assert pause.due() == ""
        os.kill(os.getpid(), signal.SIGTERM)
        assert "SIGTERM" in pause.due()
        with pytest.raises(Paused, match="SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


class Two(Alone):
    world = 2


def test_of_several_processes_a_signal_that_was_passed_on_is_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm tells every process of a job, and the one that started the others passes it on to them."""
    clock = {"now": 100.0}
    monkeypatch.setattr(module.time, "monotonic", lambda: clock["now"])
    before = use(Two())
    try:
        with Pause().listening() as pause:
            pause.begin()
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            assert "SIGTERM" in pause.due()
            clock["now"] += 3.0
            with pytest.raises(Paused, match="SIGTERM"):
                os.kill(os.getpid(), signal.SIGTERM)
    finally:
        use(before)


def test_outside_of_steps_a_signal_stops_at_once() -> None:
    with Pause().listening() as pause:
        pause.begin()
        pause.end()
        with pytest.raises(Paused):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_limit_leaves_room_for_one_more_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 0.1 hours, 360 s; 20 s of loading, steps of 60, 60, 100 and 20 s end at 260 s: one of 100 more fits just so, and a second later no more."""
    clock: dict[str, Any] = {"now": 0.0}
    monkeypatch.setattr(module.time, "monotonic", lambda: clock["now"])
    pause = Pause(0.1)
    clock["now"] = 20.0
    pause.begin()
    for seconds, why in ((60, ""), (60, ""), (100, ""), (20, "")):
        clock["now"] += seconds
        assert pause.due() == why
    assert pause.left() == pytest.approx(0.1 - 260 / 3600)
    clock["now"] += 1
    assert pause.due() == "the time limit of 0.1 hours is reached"


@pytest.mark.parametrize("hours", [0, -1, float("nan"), float("inf")])
def test_limits_that_are_none(hours: float) -> None:
    with pytest.raises(UserError, match="--max-hours is"):
        Pause(hours)
