"""What a reward prints goes to stderr: stdout belongs to the command, which may have promised JSON and nothing else.

It may print what a model wrote, so whatever a terminal would act on is written as an escape (`\\x1b`).
"""

from __future__ import annotations

import io
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posttrain.core.terminal import printable

_lock = threading.Lock()
_graders: Counter[int] = Counter()  # thread -> rewards that run in it: an event loop has several


class ByThread:
    """A stdout that sends what comes from a grader's thread to stderr, and everything else where it went before."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def _to(self) -> Any:
        return sys.stderr if threading.get_ident() in _graders else self.real

    def write(self, text: str) -> int:
        to = self._to()
        to.write(text if to is self.real else printable(text))
        return len(text)

    def flush(self) -> None:
        self._to().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


class Visible(io.TextIOWrapper):
    """A text stream on which control characters can be seen, and do nothing: stdout and stderr of a worker process."""

    def write(self, text: str) -> int:
        super().write(printable(text) if isinstance(text, str) else text)
        return len(text)


@contextmanager
def grading() -> Iterator[None]:
    """This thread runs a reward: while any does, stdout tells threads apart."""
    me = threading.get_ident()
    with _lock:
        _graders[me] += 1
        if not isinstance(sys.stdout, ByThread):
            sys.stdout = ByThread(sys.stdout)
    try:
        yield
    finally:
        with _lock:
            _graders[me] -= 1
            if not _graders[me]:
                del _graders[me]
            if not _graders and isinstance(sys.stdout, ByThread):
                sys.stdout = sys.stdout.real
