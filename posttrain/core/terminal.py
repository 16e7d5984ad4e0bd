"""Text from models, data and other people's requests, made harmless for a terminal before it is printed."""

from __future__ import annotations

import re

# control characters (ESC, the C1 codes, carriage return, ...) can move the cursor, change the title or answer for the user;
# bidirectional overrides show other text than there is; lone surrogates cannot be encoded and end the program
_HARMFUL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_HARMFUL_OR_BREAK = re.compile(f"[\t\n\u2028\u2029]|{_HARMFUL.pattern}")


def printable(text: object, one_line: bool = False) -> str:
    """The text with every character that a terminal would act on written as an escape (`\\x1b`); tabs and line breaks stay,
    unless it must be one line (a log, an error)."""
    return (_HARMFUL_OR_BREAK if one_line else _HARMFUL).sub(_escape, str(text))


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def shown(text: str, limit: int) -> str:
    """The text on one line, made harmless; of one longer than `limit` the beginning and the end."""
    if len(text) > limit:
        head = limit * 2 // 3
        text = f"{text[:head]} ... {text[len(text) - (limit - head) :]}"
    return printable(text, one_line=True)
