"""What counts as a failure of the fuzz suite: a stack trace, a hang, a wrong exit code, more than a sentence, nonsense accepted."""

from __future__ import annotations

import io
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from posttrain.cli import main
from posttrain.core.errors import UserError

SECONDS = 30.0  # a try that takes longer hangs
TEXTS = (
    "", " ", "0", "-1", "7", "nan", "inf", "-inf", "1e999", "1e-320", "9" * 400, "9" * 5000, "-" * 3000 + "1", "x" * 300, "\x00", "\x1b[2J",
    "../../evil", "/etc/passwd", "a?b#c%20", "é" * 40, "数" * 40, "🙂", "\u202e", "\ufeff", "\ud800", "(" * 500, "[" * 3000, "{" * 40,
    "\\boxed{" * 50, "<think>" * 20, "None", "True", "grpo", "grpo(", "cispo(high=", "'", '"', "\n", "a\nb", "%s%n", "{{ 7*7 }}", "${HOME}",
)  # fmt: skip
NUMBERS: tuple[Any, ...] = (
    0, 1, -1, 2, 7, 64, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.0, -0.0, 0.5, 1.5, -2.5, 1e-320, 1e-9, 1e15, 1e308, -1e308,
    float("nan"), float("inf"), float("-inf"), True, False,
)  # fmt: skip


class Hang(BaseException):
    """A try took too long; no `except Exception` swallows it."""


def value(rng: random.Random, depth: int = 0) -> Any:
    """Any value a stranger may give."""
    kind = rng.randrange(7 if depth < 3 else 4)
    if kind < 2:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice(TEXTS)
    if kind == 3:
        return None
    if kind == 4:
        return [value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {rng.choice(TEXTS): value(rng, depth + 1) for _ in range(rng.randrange(4))}
    return tuple(value(rng, depth + 1) for _ in range(rng.randrange(3)))


@contextmanager
def limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise Hang in the main thread after so many seconds."""

    def late(signum: int, frame: Any) -> None:
        raise Hang(f"took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def broken(call: Callable[[], Any], may_refuse: bool = True) -> str | None:
    """How a call ends that should have returned: it hangs, ends Python or raises; with one sentence only where it may refuse."""
    try:
        with limit():
            call()
    except Hang as error:
        return f"hangs: {error}"
    except SystemExit as error:
        return f"ends Python with {error.code!r}"
    except UserError as error:
        return not_a_sentence(str(error)) if may_refuse else trace(error)
    except Exception as error:
        return trace(error)
    return None


def tried(call: Callable[[], Any]) -> str | None:
    """What is wrong with a call: None where it returns, or refuses with one sentence."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return broken(call)


def commanded(*argv: str) -> str | None:
    """What is wrong with a command of the command line."""
    err, codes = io.StringIO(), list[int]()
    with redirect_stdout(io.StringIO()), redirect_stderr(err):
        wrong = broken(lambda: codes.append(main(list(argv))), may_refuse=False)
    if wrong:
        return wrong
    said, (code,) = err.getvalue(), codes
    if code not in (0, 1, 2, 130):
        return f"exit code {code!r}"
    if "Traceback (most recent call last)" in said:
        return f"a stack trace: {said[-200:]!r}"
    if code == 2:
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        return not_a_sentence(errors[0]) if len(errors) == 1 else f"{len(errors)} errors: {said[:200]!r}"
    return None


def not_a_sentence(text: str) -> str | None:
    """A message that nobody would read: empty, of several lines, or longer than a screen."""
    if not text.strip() or len(text) > 1500 or text.count("\n") > 1:
        return f"no sentence: {text[:150]!r} ({len(text)} characters)"
    return None


def trace(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:120]!r} at {last.filename.rpartition('/')[2]}:{last.lineno}"
