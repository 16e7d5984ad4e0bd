"""What a reward prints goes to stderr: stdout belongs to the command, which may have promised JSON and nothing else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.Lock()
_graders: set[int] = set()  # threads in which rewards run
_inside = 0


class ByThread:
    """A stdout that sends what comes from a grader's thread to stderr, and everything else where it went before."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def _to(self) -> Any:
        return sys.stderr if threading.get_ident() in _graders else self.real

    def write(self, text: str) -> int:
        n: int = self._to().write(text)
        return n

    def flush(self) -> None:
        self._to().flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@contextmanager
def prints_apart() -> Iterator[None]:
    """While any scoring is under way, stdout tells threads apart."""
    global _inside
    with _lock:
        _inside += 1
        if not isinstance(sys.stdout, ByThread):
            sys.stdout = ByThread(sys.stdout)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and isinstance(sys.stdout, ByThread):
                sys.stdout = sys.stdout.real


def this_thread_grades(on: bool = True) -> None:
    """Said by a grader's thread as it begins and ends: identifiers are used again."""
    (_graders.add if on else _graders.discard)(threading.get_ident())
