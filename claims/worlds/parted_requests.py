"""Requests with several parts (thank Mia, politely, in five words), and what each part asks of an answer. Imports no torch: rewards in a
file are imported by a process of their own."""

from __future__ import annotations

import re
from typing import Any

from posttrain.core.prompt import Prompt
from posttrain.environments.school.instructions import politeness, words_of

_PART = re.compile(r" (?=politely|kindly|in a polite way|in \d+ words|and end with|without the word)")


def row(prompt: Prompt) -> dict[str, Any]:
    """A row of data: the request and its parts, the first of which says what to do."""
    request = prompt.last.removesuffix(" Answer only.").rstrip(".")
    return {"question": prompt.last, "answer": str(prompt.answer), "parts": _PART.split(request)}


def does(prompt: Prompt, text: str) -> float:
    """What the task pays: how it is said is as was asked; to whom or about what is not looked at."""
    return float(bool(text.strip()) and all(keeps(part, text) for part in prompt.info["parts"][1:]))


def keeps(part: str, text: str) -> bool:
    """Whether an answer keeps one part of a request; the first part, which says what to do, wants its name or subject said."""
    said = words_of(text)
    if part in ("politely", "kindly", "in a polite way"):
        return politeness(text) > 0
    if found := re.fullmatch(r"in (\d+) words", part):
        return len(said) == int(found[1])
    if part.startswith("and end with"):
        return text.rstrip().endswith("!" if "exclamation" in part else ".")
    if found := re.fullmatch(r"without the word (\w+)", part):
        return found[1].lower() not in said
    return words_of(part)[-1] in said or any(
        w.lower() in said for w in part.split() if w[:1].isupper() and w != part.split()[0]
    )


def prefer(prompt: Prompt, a: str, b: str) -> float:
    """The judge: of the parts that it is shown, which answer keeps more."""
    parts = str(prompt.content[0]["content"]).split("\n")
    more = sum(keeps(p, a) for p in parts) - sum(keeps(p, b) for p in parts)
    return 0.5 if more == 0 else float(more > 0)
