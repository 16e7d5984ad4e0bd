"""Keep what the engine has read between calls, for answers that go on from one another: trees, segment by segment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def remembering(policy: Any, length: int = 0) -> Iterator[None]:
    """Within it, the engine that samples from this policy prefills no prefix that it has sampled or read before. length: of the
    longest sequence to come, because an engine that must grow later forgets.

    Nothing changes for a policy without the native engine (it samples on a GPU, or with packed weights).
    """
    find = getattr(policy, "_engine", None)
    engine = find() if find else None
    if engine is None:
        yield
        return
    _switch(engine, True, length)
    try:
        yield
    finally:
        _switch(engine, False, 0)


def _switch(engine: Any, on: bool, length: int) -> None:
    """Begin or end it; what was kept is forgotten."""
    engine.least_length = length
    if engine.slots is not None:
        engine.slots.pages.clear_cache()
        engine.admission.prefix_cache = on
    engine.prefix_cache = on
