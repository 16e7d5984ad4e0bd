"""JSON and Python texts of a model: read strictly, or mended once where nothing is lost by it.

Three things are mended: raw line breaks inside texts, commas before a closing bracket, and closing brackets missing at the end. A text
that ends inside a string, after a comma or after a colon has lost something, and is never mended.
"""

from __future__ import annotations

import json
import math
from typing import Any

Repaired = tuple[Any, bool]  # a value, and whether its text was mended
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_DEEP = 100  # brackets inside one another


def loads(text: str) -> Any:
    """Strict JSON: no NaN, no number that is too large for a float, no key twice; a ValueError says what is wrong, in a few words."""
    try:
        return _decoder().decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None


def first_object(text: str, start: int, opens: str = "{") -> int:
    """Where the JSON object (or list, as `opens` says) ends that begins at a place (after spaces); -1 where there is none, or it is not
    strict JSON."""
    while start < len(text) and text[start].isspace():
        start += 1
    if start >= len(text) or text[start] not in opens:
        return -1
    try:
        return _decoder().raw_decode(text, start)[1]
    except (ValueError, RecursionError):
        return -1


def _decoder() -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refuse, parse_float=_finite)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key is there twice")
    return made


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:20]} is too large")
    return number


def repaired_json(text: str) -> str | None:
    """The text mended; None where that would lose something, or where nothing is there to mend."""
    return _mended(text.strip(), '"', commas=True)


def repaired_python(text: str) -> str | None:
    """The same of a Python expression, whose lists may end with a comma."""
    return _mended(text.strip(), "\"'", commas=False)


def _mended(text: str, quotes: str, commas: bool) -> str | None:
    out: list[str] = []
    stack: list[str] = []
    inside = ""  # the quote that the text is inside of
    escaped = False
    for char in text:
        if inside:
            if escaped:
                escaped = False
                if char in "\r\n":  # a backslash before a line break: nobody knows what was meant
                    return None
            elif char == "\\":
                escaped = True
            elif char == inside:
                inside = ""
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, char) if inside else char)
            continue
        if char in quotes:
            inside = char
        elif char in _CLOSERS:
            stack.append(_CLOSERS[char])
        elif stack and char == stack[-1]:
            stack.pop()
            if commas:
                _drop_comma(out)
        elif char in "}])":
            return None
        out.append(char)
        if len(stack) > _DEEP:
            return None
    if inside or (stack and text[-1:] in ",:="):
        return None
    made = "".join(out) + "".join(reversed(stack))
    return made if made != text else None


def ends_inside(text: str, python: bool = False) -> bool:
    """Whether the text ends inside a string or a bracket: the rest of it is missing."""
    depth, inside, escaped = 0, "", False
    for char in text:
        if inside:
            inside = "" if char == inside and not escaped else inside
            escaped = char == "\\" and not escaped
        elif char == '"' or (python and char == "'"):
            inside = char
        else:
            depth += (char in "{[(") - (char in "}])")
    return bool(inside) or depth > 0


def _drop_comma(out: list[str]) -> None:
    """Take away a comma at the end of what was written."""
    at = len(out) - 1
    while at >= 0 and out[at].isspace():
        at -= 1
    if at >= 0 and out[at] == ",":
        del out[at]
