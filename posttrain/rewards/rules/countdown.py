"""The expression hits the target."""

from __future__ import annotations

import re

from posttrain.core.answers import final_answer, marked
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.environments.school.countdown import value_of

_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "[": "(", "]": ")"})


@reward(title="Countdown expression")
def countdown(prompt: Prompt, text: str, exactly: bool = True) -> float:
    """Countdown: 1 when the final expression makes info["target"] out of info["numbers"].

    exactly=True asks for every number once, as the data sets do; False allows to leave some out.
    The expression is the marked answer, else the last line; `= target` may follow it. It is parsed, never run.
    """
    tail = final_answer(text)
    if not tail:
        return 0.0
    numbers = [int(x) for x in prompt.info["numbers"]]
    line = marked(tail) or tail.splitlines()[-1]
    expression = line.translate(_SIGNS).replace("\\times", "*").strip(" .$`").split("=")[0]
    if exactly and sorted(map(int, re.findall(r"\d{1,9}", expression))) != sorted(numbers):
        return 0.0
    return float(value_of(expression, numbers) == prompt.info["target"])


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    prompt = Prompt.text("countdown", "Make 12 from 2 2 3.", "(2+2)*3", numbers=[2, 2, 3], target=12)
    tagged = (prompt, "<answer>(2+2)*3 = 12</answer>", "12")
    return problems(countdown, [tagged, (prompt, "first\n(2 + 2) × 3", "2*2*3*1")])
