"""Gymnasium's spaces in words: what was observed as a text, and the action that a text names."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from posttrain.core.answers import final
from posttrain.core.errors import UserError

MOST_SEEN, MOST_ACTED = 64, 16  # numbers of one observation that a text lists; of one action
MOST_NAMED = 64  # actions that are listed by their numbers
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_HIGHLIGHT = re.compile(r"\x1b\[4\d(?:;\d+)*m(.*?)\x1b\[0m")  # a background colour: where one is
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Reader = Callable[[str], Any]  # the text of a turn -> an action; Unreadable where it names none


class Unreadable(Exception):
    """A text that names no action, in words for the model."""


# ---- observations


def unseen(space: Any) -> str:
    """Why observations of a space cannot be written as a text; empty where they can."""
    kind = type(space).__name__
    if kind in ("Discrete", "Text"):
        return ""
    if kind in ("Box", "MultiDiscrete", "MultiBinary"):
        size = int(np.prod(space.shape))
        return "" if size <= MOST_SEEN else f"{size:,} numbers ({kind} of shape {space.shape}), such as a picture"
    if kind in ("Tuple", "Dict"):
        inside = space.spaces.values() if kind == "Dict" else space.spaces
        return next((why for one in inside if (why := unseen(one))), "")
    return f"the space {kind}"


def described(space: Any, seen: Any, labels: Sequence[str] = ()) -> str:
    """An observation as a text: numbers with four digits, parts by their names where they have some."""
    kind = type(space).__name__
    if kind == "Text":
        return str(seen)
    if kind == "Discrete":
        return f"{labels[0]} {int(seen)}" if len(labels) == 1 else str(int(seen))
    if kind == "Dict":
        return "\n".join(f"{key}: {described(one, seen[key])}" for key, one in space.spaces.items())
    if kind == "Tuple":
        parts = [described(one, x) for one, x in zip(space.spaces, seen, strict=True)]
        return listed(parts, labels)
    rows = np.asarray(seen)
    if rows.ndim > 1:
        return "\n".join(" ".join(map(short, row.ravel())) for row in rows)
    return listed([short(x) for x in rows.ravel()], labels)


def listed(parts: Sequence[str], labels: Sequence[str]) -> str:
    if len(labels) != len(parts):
        return ", ".join(parts)
    return ", ".join(f"{label} {part}" for label, part in zip(labels, parts, strict=True))


def short(x: Any) -> str:
    """A number with four digits; minus nought is nought."""
    return f"{float(x) + 0.0:.4g}"


def uncoloured(text: str) -> str:
    """A terminal's picture as plain text: what has a background colour stands in brackets."""
    return _COLOUR.sub("", _HIGHLIGHT.sub(r"[\1]", text)).strip("\n")


# ---- actions


def reader(space: Any, words: Sequence[str]) -> tuple[Reader, str]:
    """How a text is read as an action of a space, and the sentence that says what to write. words: names of its choices."""
    kind = type(space).__name__
    if words and kind != "Discrete":
        raise UserError(f"actions names the choices of a Discrete space, and this one is {space}; leave actions away")
    if kind == "Discrete":
        return _choices(space, words)
    if kind == "Text":
        told = f"Answer with a text of {space.min_length} to {space.max_length} characters."
        return partial(_text, space, told), told
    if kind in ("MultiDiscrete", "MultiBinary", "Box") and 0 < (n := int(np.prod(space.shape))) <= MOST_ACTED:
        told = f"Answer with {'a number' if n == 1 else f'{n} numbers'}: {', '.join(bounds(space))}."
        return partial(_numbers, space, told), told
    raise UserError(
        f"its actions are {space}, which a text cannot name; Discrete, Text, and Box, MultiDiscrete or MultiBinary of at most "
        f"{MOST_ACTED} numbers can be named"
    )


def _choices(space: Any, words: Sequence[str]) -> tuple[Reader, str]:
    first, n = int(space.start), int(space.n)
    if words and (len(words) != n or len({w.lower() for w in words}) != n):
        raise UserError(f"actions has {len(words)} names ({', '.join(words)}); expected {n}, all different")
    names = {w.lower(): first + i for i, w in enumerate(words)} or {str(first + i): first + i for i in range(n)}
    told = f"Answer with one of: {', '.join(words or names)}."
    if not words and n > MOST_NAMED:
        told = f"Answer with a whole number from {first} to {first + n - 1}."
    either = "|".join(re.escape(w) for w in sorted(names, key=len, reverse=True))
    return partial(_chosen, re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE), names, told), told


def _chosen(pattern: re.Pattern[str], names: dict[str, int], told: str, text: str) -> int:
    """The one action that is named; several different ones are none."""
    found = dict.fromkeys(hit.lower() for hit in pattern.findall(answered(text, told)))
    if len(found) != 1:
        what = "That names no action." if not found else f"That names several actions: {', '.join(found)}."
        raise Unreadable(f"{what} {told}")
    return names[next(iter(found))]


def _text(space: Any, told: str, text: str) -> str:
    said = answered(text, told)
    if not space.contains(said):
        raise Unreadable(
            f"That cannot be said here: it has {len(said)} characters, or letters that are not allowed. {told}"
        )
    return said


def _numbers(space: Any, told: str, text: str) -> Any:
    found = [float(x) for x in _NUMBER.findall(answered(text, told))]
    if len(found) != int(np.prod(space.shape)):
        raise Unreadable(f"That has {len(found)} numbers. {told}")
    made = np.asarray(found, dtype=np.float64).reshape(space.shape)
    action = made.astype(space.dtype)
    if (space.dtype.kind in "iu" and not np.array_equal(action, made)) or not space.contains(action):
        raise Unreadable(f"That is out of range. {told}")
    return action


def bounds(space: Any) -> list[str]:
    """The range of each number of an action."""
    kind = type(space).__name__
    if kind == "MultiBinary":
        return ["0 or 1"] * int(np.prod(space.shape))
    if kind == "MultiDiscrete":
        start = np.broadcast_to(space.start, space.nvec.shape).ravel()
        return [f"whole, from {a} to {a + n - 1}" for a, n in zip(start, space.nvec.ravel(), strict=True)]
    return [f"from {short(a)} to {short(b)}" for a, b in zip(space.low.ravel(), space.high.ravel(), strict=True)]


def answered(text: str, told: str) -> str:
    """What a turn says after its thoughts."""
    said = final(text)
    if said is None:
        raise Unreadable(f"That says nothing, or its thought has no end. {told}")
    return said
