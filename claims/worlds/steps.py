"""Whether each word of a written calculation is right: a reward of segments for the school's arithmetic, and its sum for whole answers.

`step(prompt, text, start, end)` sees the question, the answer and where the word lies; `steps` is the same reward all at once.
"""

from __future__ import annotations

import re
from typing import Any

from posttrain.core.credit import split_steps
from posttrain.environments.school.arithmetic import chain
from posttrain.environments.school.noisy_solver import CAREFUL


def right_words(prompt: Any) -> list[str]:
    """What a careful pupil writes: `<think>69*5: 9*5=45 6*5+4=34 -> 345</think>345`, word by word."""
    asked = re.search(r"\d+(?:[-+*]\d+)+", prompt.content[0]["content"])
    assert asked is not None
    numbers, ops = [int(x) for x in re.findall(r"\d+", asked[0])], re.findall(r"[-+*]", asked[0])
    told, value = chain(numbers, ops, CAREFUL)
    return f"<think>{told}</think>{value}".split()


def step(prompt: Any, text: str, start: int, end: int) -> float:
    """+1 where the word is what stands at its place in the right calculation, -1 where it is not."""
    right, at = right_words(prompt), len(text[:start].split())
    return 1.0 if at < len(right) and text[start:end].strip() == right[at] else -1.0


def steps(prompt: Any, text: str, start: int, end: int) -> float:
    """All words of the answer together."""
    return sum(step(prompt, text, *span) for span in split_steps(text, "word"))
