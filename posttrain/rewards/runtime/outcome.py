"""What came of asking a reward about an answer: a number, the reason why there is none, or None where it does not apply."""

from __future__ import annotations

import inspect
import math
import traceback
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any

from posttrain.core.typed import shown

NAN = float("nan")
MOST = 1e15  # rewards are averaged and squared in float32, which ends at 3e38


@dataclass(frozen=True)
class Failure:
    """Why a value is missing: it `raised`, was `late`, or was `not a number`; the error, and the line it came from."""

    kind: str
    error: str
    where: str = ""


Outcome = float | Failure | None  # a number, why there is none, or "does not apply here"


def caught(error: BaseException) -> Failure:
    """A Failure that remembers the error's text and the last line of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].line or ''}".strip() if frames else ""
    kind = "late" if isinstance(error, TimeoutError) else "raised"
    try:
        told = str(error)
    except Exception:  # an error whose text raises
        told = "(it cannot be shown)"
    text = f"{type(error).__name__}: {told}".encode("utf-8", "backslashreplace").decode()
    return Failure(kind, text[:500], where)


def late(timeout: float) -> Failure:
    """The Failure of a call that was left behind."""
    return Failure("late", f"TimeoutError: no result within {timeout:g} s")


def as_number(x: Any) -> float | Failure:
    """A finite float, or the Failure that says what came instead; whatever the object's own methods raise is one too."""
    if isinstance(x, Failure):
        return x
    try:
        return _number(x)
    except Exception as error:
        return caught(error)


def _number(x: Any) -> float | Failure:
    if inspect.iscoroutine(x):
        x.close()
        return Failure("not a number", "returned a coroutine; declare the reward with `async def`")
    if hasattr(x, "item"):  # a scalar of numpy or torch; larger arrays are reported by type
        with suppress(ValueError, RuntimeError):
            x = x.item()
    if not isinstance(x, Real | Decimal):
        return Failure("not a number", f"returned {type(x).__name__} {shown(x)}, expected a number")
    try:
        value = float(x)
    except (OverflowError, ValueError):  # an int of 400 digits, a signalling NaN of Decimal
        return Failure("not a number", f"returned {shown(x)}, expected a number between -{MOST:g} and {MOST:g}")
    if not math.isfinite(value):
        return Failure("not a number", f"returned {value}, expected a finite number")
    if abs(value) > MOST:
        return Failure("not a number", f"returned {value:g}, expected a number between -{MOST:g} and {MOST:g}")
    return value


def finite(x: Outcome) -> float:
    """The number, or NaN where there is none, or none that can be summed."""
    return x if isinstance(x, float | int) and abs(x) <= MOST else NAN


def listed(whole: Any, n: int, may_skip: bool) -> list[Outcome]:
    """What a reward returned for n answers at once; `may_skip`: None says that it does not apply to an answer."""
    if isinstance(whole, Failure):
        return [whole] * n
    try:
        values = whole.tolist() if hasattr(whole, "tolist") else whole
        many = isinstance(values, list | tuple)
        if not many or len(values) != n:
            got = f"a list of {len(values)}" if many else f"{type(values).__name__} {shown(values)}"
            return [Failure("not a number", f"returned {got}, expected a list of {n} numbers")] * n
        return [None if x is None and may_skip else as_number(x) for x in values]
    except Exception as error:
        return [caught(error)] * n
