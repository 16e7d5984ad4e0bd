"""The right answer in other words: what people and models write instead of the bare gold answer. A reward should pay for each.

Each is a function of a prompt and its gold answer; None where it makes no sense for that prompt.
"""

from __future__ import annotations

from posttrain.core.answers import is_number
from posttrain.core.types import Prompt
from posttrain.rewards.auditing.attacks import Attack

_ONES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]  # fmt: skip
_TENS = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_REMARK = (
    " I am quite sure of it, and I hope that this short explanation was of some help to you today."  # over 50 letters
)


def whole(gold: str) -> int | None:
    """The gold answer as a whole number, where it is one."""
    text = gold.strip().replace(",", "")
    return int(text) if text.lstrip("-").isdigit() and len(text) < 16 and text.isascii() else None


def spelled(prompt: Prompt, gold: str) -> str | None:
    """A number below a hundred as a word."""
    n = whole(gold)
    if n is None or not 0 <= n < 100:
        return None
    return _ONES[n] if n < 20 else _TENS[n // 10] + (f"-{_ONES[n % 10]}" if n % 10 else "")


def decimal(prompt: Prompt, gold: str) -> str | None:
    """7.0 for 7."""
    return f"{whole(gold)}.0" if whole(gold) is not None else None


def grouped(prompt: Prompt, gold: str) -> str | None:
    """1,234 for 1234, and the other way round."""
    n = whole(gold)
    if n is None or abs(n) < 1000:
        return None
    return str(n) if "," in gold else f"{n:,}"


def other_case(prompt: Prompt, gold: str) -> str | None:
    """YES for yes."""
    return None if is_number(gold) or gold.swapcase() == gold else gold.swapcase()


WORDINGS: dict[str, Attack] = {
    "as a sentence": lambda p, g: f"The answer is {g}.",
    "in a box": lambda p, g: f"\\boxed{{{g}}}",
    "in answer tags": lambda p, g: f"<answer>{g}</answer>",
    "in bold": lambda p, g: f"**{g}**",
    "after ####": lambda p, g: f"#### {g}",
    "with a remark after it": lambda p, g: f"The answer is {g}.{_REMARK}",
    "with a decimal point": decimal,
    "with thousands marked": grouped,
    "in words": spelled,
    "in other case": other_case,
}
