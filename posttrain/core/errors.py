"""Errors a user can act on: what was got, what was expected, what to type next."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake of the caller's, told in one sentence; the command line prints it without a stack trace."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to `name`, or None when nothing is close."""
    known = list(known)
    folded = {k.lower().replace("_", "-"): k for k in known}
    hits = get_close_matches(name.lower().replace("_", "-"), folded, n=1, cutoff=0.5)
    return folded[hits[0]] if hits else None


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
