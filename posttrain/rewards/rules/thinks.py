"""Whether the answer thought at all: which mode it chose, not how good it is."""

from __future__ import annotations

from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.thinking import thought_of
from posttrain.core.types import Prompt


@reward(title="Thinks", paper="arXiv:2505.10832")
def thinks(prompt: Prompt, text: str) -> float:
    """Thinks (AutoThink, AdaCoT): 1 where <think>...</think> holds any thought, 0 where it is empty or missing.

    Whoever wrote the tag: a text begins with what the chat template or a prefill opened. A thought that was cut off is one.

    With a weight of 0 (`task + 0*thinks`) it changes no reward and tells shaping the mode of each answer.
    """
    return float(not thought_of(text).empty)


def validate() -> list[str]:
    """A thought is one; an empty pair of tags, dots or a bare answer is none."""
    prompt = Prompt.text("thinks", "2+2?", "4")
    cases = [("<think>2+2</think>4", "<think>\n...\n</think>4"), ("<think>so", "4"), ("so</think>4", "</think>4")]
    return problems(thinks, [(prompt, good, bad) for good, bad in cases])
