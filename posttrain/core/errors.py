"""Errors a user can act on: what was got, what was expected, what to type next."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_HEAD, _TAIL = 400, 400  # characters of a message that quotes something endless: what it is about, and what to type


class UserError(ValueError):
    """A mistake of the caller, explained in one sentence; the command line prints it without a stack trace."""

    def __init__(self, message: object = "") -> None:
        text = str(message)
        super().__init__(text if len(text) <= 2 * (_HEAD + _TAIL) else f"{text[:_HEAD]} ... {text[-_TAIL:]}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close; of those as alike, the one with the fewest typing errors."""
    known, name = list(known), name[:100]
    folded = {k.lower().replace("_", "-"): k for k in known}
    word = name.lower().replace("_", "-")
    hits = get_close_matches(word, folded, n=5, cutoff=0.5)
    return folded[min(hits, key=lambda hit: edits(word, hit))] if hits else None


def edits(a: str, b: str) -> int:
    """Letters left out, added, changed or swapped with their neighbour: `gpro` is one edit from `grpo`, two from `gspo`."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            least = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and (x, a[i - 2]) == (b[j - 2], y):
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not there: `no loss named 'csipo'; did you mean 'cispo'?`."""
    known = sorted(known)
    close = nearest(name, known)
    if close:
        hint = f"did you mean {close!r}?"
    elif known:
        hint = "known: " + ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    else:
        hint = "there are none"
    return UserError(f"no {kind} named {name!r}; {hint}")
