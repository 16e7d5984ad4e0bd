"""Texts of data and models as a terminal may show them: on one line, shortened, with no character that commands the terminal."""

from __future__ import annotations

import unicodedata


def printable(text: str, limit: int = 0) -> str:
    """The text on one line; escape sequences and other control characters are written out (`\\x1b`), line ends as `\\n`. Of a text
    longer than `limit` the beginning and the end."""
    if limit and len(text) > limit:
        head = limit * 2 // 3
        text = f"{text[:head]} ... {text[len(text) - (limit - head) :]}"
    return "".join(c if _harmless(c) else _written(c) for c in text)


def _harmless(c: str) -> bool:
    return c.isprintable() or c == " " or unicodedata.category(c) == "Zs"


def _written(c: str) -> str:
    return c.encode("unicode_escape", "surrogatepass").decode("ascii")
