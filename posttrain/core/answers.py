"""Where the answer is in a text: after </think>, in <answer> tags, in \\boxed{}, after ####; and which number it is."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any
from unicodedata import normalize

from posttrain.core.errors import UserError
from posttrain.core.types import Message, Prompt

_TAG = re.compile(r"<answer>((?:(?!<answer>).)*?)</answer>", re.DOTALL | re.IGNORECASE)
_FRAC = re.compile(
    r"(?P<sign>(?<![\w)\]}])-\s*)?(?P<whole>\d{1,18}\s*)?\\[dt]?frac\s*"
    r"\{\s*(?P<over>-?\d{1,18})\s*\}\s*\{\s*(?P<under>\d{1,18})\s*\}"
)
_SHORT = re.compile(r"\\[dt]?frac\s*(\d)\s*(\d)(?!\d)")  # \frac12
_POWER = re.compile(r"(?<=[A-Za-z}])\s*\^\s*(?:\{\s*-?\d+\s*\}|-?\d+)")  # of a unit: 3 cm^2 is 3
# a sign counts only where no operand stands before it, so that 10-3 ends in 3, not in -3
_NUMBER = re.compile(
    r"(?P<sign>(?<![\w)\].])[-+])?\$?"
    r"(?P<body>\d{1,3}(?:,\d{3})+(?![\d])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?P<exp>[eE][-+]?\d{1,2}(?!\d))?"
    r"(?:\s*/\s*(?P<under>\d+))?"
)
_CHOICE = re.compile(r"^[ \t]*\(?(?P<letter>[A-Z])[).:]", re.MULTILINE)
_LONGEST = 60  # digits: no answer of a school or contest problem has more, and longer ones cost time


def final_answer(text: str) -> str | None:
    """What follows the last </think>; the whole text without one; None when thinking was opened and never closed."""
    tail = text.rpartition("</think>")[2]
    return None if "<think>" in tail else tail.strip()


def plain(text: str) -> str:
    """Lower case, single spaces, no closing full stop; accents as one character however they were typed."""
    text = text if text.isascii() else normalize("NFC", text)
    return " ".join(text.lower().split()).rstrip(".").rstrip()


def marked(text: str) -> str | None:
    """What the final part of a text marks as its answer: <answer>x</answer>, else the last \\boxed{x}, else #### x."""
    tail = final_answer(text)
    if tail is None:
        return None
    tagged: list[str] = _TAG.findall(tail)
    if tagged:
        return tagged[-1].strip()
    box = boxed(tail)
    return box if box is not None else hashed(tail)


def final(text: str) -> str | None:
    """The marked answer, else all that follows the thinking; None when thinking was never closed or nothing follows."""
    tail = final_answer(text)
    if tail is None:
        return None
    mark = marked(tail)
    return (mark if mark is not None else tail).strip() or None


def boxed(text: str) -> str | None:
    r"""The inside of the last complete \boxed{...}; braces may nest."""
    start = len(text)
    while (start := text.rfind(r"\boxed{", 0, start)) >= 0:
        depth, open_ = 0, start + len(r"\boxed")
        for i in range(open_, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[open_ + 1 : i].strip()
    return None


def hashed(text: str) -> str | None:
    """The rest of the line after the last ####, as GSM8K writes it."""
    _, mark, rest = text.rpartition("####")
    return (rest.strip().splitlines() or [""])[0].strip() if mark else None


def number(text: str) -> Fraction | None:
    """The last number of a text, exactly: 1,234.5, -3, $18, 3/4, 1\\frac{3}{4}, 2e3; a % sign is not read."""
    text = _POWER.sub("", _SHORT.sub(r"\\frac{\1}{\2}", text.replace("−", "-")))
    text = _FRAC.sub(_slash, text).replace("\\$", "$").replace("-$", "-").replace("{,}", ",")
    hits = list(_NUMBER.finditer(text))
    return _fraction(hits[-1]) if hits else None


def _slash(hit: re.Match[str]) -> str:
    """A LaTeX fraction as p/q: -1\\frac{4}{5} is -9/5."""
    over, under = int(hit["over"]) + int(hit["whole"] or 0) * int(hit["under"]), hit["under"]
    return f" {-over if hit['sign'] else over}/{under} "


def is_number(text: str) -> bool:
    """Whether a text is a number and nothing else."""
    return _NUMBER.fullmatch(text.strip()) is not None


def _fraction(hit: re.Match[str]) -> Fraction | None:
    body, under = hit["body"].replace(",", ""), hit["under"]
    if len(body) > _LONGEST or len(under or "") > _LONGEST or (under and int(under) == 0):
        return None
    value = Fraction(body + (hit["exp"] or "")) / Fraction(under or 1)
    return -value if hit["sign"] == "-" else value


def golds(prompt: Prompt) -> list[Any]:
    """The gold answers of a prompt (a list means any of them will do); none is an error, not a wrong answer."""
    answer = prompt.answer
    found = list(answer) if isinstance(answer, (list, tuple, set)) else [answer]
    if not found or any(a is None for a in found):
        raise UserError(f"prompt {prompt.id} carries no gold answer to compare with; use a reward that needs none")
    return found


def demonstration(prompt: Prompt) -> str | None:
    """The answer to imitate: the one that came with the prompt, else its gold answer as a text (the first of several)."""
    told = prompt.info.get("demonstration", prompt.answer)
    if isinstance(told, (list, tuple)) and told:
        told = told[0]
    return str(told) if isinstance(told, (str, bool, int, float)) else None


def conversation(prompt: Prompt) -> tuple[Message, ...] | None:
    """The messages of which every turn of the assistant is imitated; None where only the answer is."""
    last = prompt.info.get("imitated")
    return (*prompt.content, last) if isinstance(last, dict) else None


def imitable(prompt: Prompt) -> bool:
    """Whether a prompt comes with an answer, or answers, to imitate."""
    return conversation(prompt) is not None or demonstration(prompt) is not None


def offered(question: str) -> str:
    """The letters of the choices that a question writes out, each at the start of a line: `(A) one`, `B. two`, `C) three`."""
    found = ""
    for hit in _CHOICE.finditer(question):
        if hit["letter"] == chr(ord("A") + len(found)):
            found += hit["letter"]
    return found if len(found) > 1 else ""


def same(a: str, b: str) -> bool:
    """Equal up to case, spacing and a closing full stop."""
    return plain(a) == plain(b)
