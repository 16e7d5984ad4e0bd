"""Callbacks that watch a run from outside its arithmetic: trackers and the profiler, closed however the run ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from posttrain.core.config import Config
from posttrain.runs.profile import Profile
from posttrain.runs.trackers import Track


@contextmanager
def observers(track: str = "", profile: bool = False) -> Iterator[tuple[Any, ...]]:
    """The callbacks for `--track` and `--profile`; a tracker whose package is missing is an error here, before anything is loaded."""
    made: list[Any] = ([Track(track)] if track else []) + ([Profile()] if profile else [])
    with ExitStack() as stack:
        for one in made:
            stack.callback(one.close)
        yield tuple(made)


def tell_loading(callbacks: Sequence[Any], config: Config, measured: bool = True) -> None:
    """All that can be refused has been: the model is about to be loaded (on_load of a callback); measured: and looked at."""
    for callback in callbacks:
        if callable(react := getattr(callback, "on_load", None)):
            react(config, measured)


def trace_of(callbacks: list[Any]) -> dict[str, str]:
    """Where the profiler has written its trace, for the summary."""
    traces = [str(c.trace) for c in callbacks if isinstance(c, Profile) and c.trace]
    return {"profile": traces[0]} if traces else {}
