"""The other side of rules/math.py: compares mathematical answers with math-verify, one JSON line in, one out."""

from __future__ import annotations

import json
import logging
import signal
import sys
from functools import lru_cache
from math import ceil
from typing import Any

_MEMORY = 4 << 30  # bytes of address space


def limit_memory() -> None:
    """A huge power must end in MemoryError here, not in a machine that swaps."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        top = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
        resource.setrlimit(resource.RLIMIT_AS, (top, hard))
    except (ImportError, ValueError, OSError):
        pass


@lru_cache(maxsize=4096)
def gold_of(text: str) -> tuple[Any, ...]:
    """A gold answer, parsed once however many answers are compared with it."""
    return tuple(expressions(text))


def expressions(text: str) -> list[Any]:
    """What math-verify reads in a text; a bare expression without $ or box is read as LaTeX."""
    from math_verify import parse

    found: list[Any] = parse(text, parsing_timeout=None)
    return found or parse(f"${text}$", parsing_timeout=None)


def same(gold: str, answer: str) -> bool:
    """Whether two answers are mathematically equal."""
    from math_verify import verify

    want = list(gold_of(f"\\boxed{{{gold}}}")) or list(gold_of(gold))
    if not want:
        raise ValueError(f"math-verify cannot read the gold answer {gold[:80]!r}")
    return bool(verify(want, expressions(answer), timeout_seconds=None))


def answer(line: str) -> dict[str, Any]:
    """The reply to one question, `{"value": true}` or `{"error": "..."}`."""
    try:
        question = json.loads(line)
        if hasattr(signal, "alarm"):
            signal.alarm(ceil(question["timeout"]) + 2)  # ends this process even when whoever asked is gone
        return {"value": same(question["gold"], question["answer"])}
    except Exception as error:  # told to whoever asked
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    finally:
        if hasattr(signal, "alarm"):
            signal.alarm(0)


def main() -> None:
    """Answer until stdin is closed."""
    limit_memory()
    logging.disable(logging.CRITICAL)
    same("1", "1")  # pays for the imports before the clock runs
    out, sys.stdout = sys.stdout, sys.stderr  # a stray print must not break the protocol
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(line)), file=out, flush=True)


if __name__ == "__main__":
    main()
