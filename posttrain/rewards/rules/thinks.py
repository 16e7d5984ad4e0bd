"""Whether the answer thought at all: which mode it chose, not how good it is."""

from __future__ import annotations

import re

from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt

_THOUGHT = re.compile(r"<think>(.*?)(?:</think>|$)", re.DOTALL)


@reward(title="Thinks", paper="arXiv:2505.10832")
def thinks(prompt: Prompt, text: str) -> float:
    """Thinks (AutoThink, AdaCoT): 1 where <think>...</think> holds any thought, 0 where it is empty or missing.

    With a weight of 0 (`task + 0*thinks`) it changes no reward and tells shaping the mode of each answer.
    """
    return float(any(thought.strip(" \n\t.") for thought in _THOUGHT.findall(text)))


def validate() -> list[str]:
    """A thought is one; an empty pair of tags, dots or a bare answer is none."""
    prompt = Prompt.text("thinks", "2+2?", "4")
    return problems(thinks, [(prompt, "<think>2+2</think>4", "<think>\n...\n</think>4"), (prompt, "<think>so", "4")])
