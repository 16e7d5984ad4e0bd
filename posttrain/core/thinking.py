"""Where the thought of an answer is: in its text, and in its tokens. One reading for rewards, graders, shaping and parts.

A thought stands between <think> and </think>. Some chat templates open it themselves (R1-Distill, QwQ), or open and close it
(Qwen3 with enable_thinking=False), and a prefill may begin it: then the tag is in the prompt, and no action of the policy wrote
it. `Observation.lead` holds what was so written for the policy, and the text of a turn begins with it, so that a text
reads the same whoever wrote the tag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from posttrain.core.turn import Turn

OPEN, CLOSE = "<think>", "</think>"
BEFORE, INSIDE, CLOSING, AFTER = range(
    4
)  # of a token: before the thought (or there is none), in it, in its closing tag, after it
_NOTHING = " \n\t."  # AutoThink's prompt is a line of dots


@dataclass(frozen=True)
class Thought:
    """text[start:end] was thought, text[answer:] answered, in characters; an answer without tags is all answer.

    opened: there is a thought, be it empty. closed: it ended, so that what follows is an answer. empty: nothing but space and dots.
    """

    start: int
    end: int
    answer: int
    opened: bool
    closed: bool
    empty: bool


def thought_of(text: str) -> Thought:
    """The thought of an answer. Without <think>, a </think> closes a thought that began with the text; after several the last
    one counts; a <think> behind it opens the thought again, and nothing is answered until it closes."""
    last = text.rfind(CLOSE)
    again = text.find(OPEN, last + len(CLOSE)) if last >= 0 else text.find(OPEN)
    if last < 0 and again < 0:
        return Thought(0, 0, 0, False, False, True)
    first = text.find(OPEN)
    start = first + len(OPEN) if first >= 0 and (last < 0 or first < last) else 0
    closed = again < 0
    end = last if closed else len(text)
    answer = last + len(CLOSE) if closed else len(text)
    said = text[start:end].replace(OPEN, "").replace(CLOSE, "")
    return Thought(start, end, answer, True, closed, not said.strip(_NOTHING))


def phases(decode: Callable[[Tensor], str], turn: Turn) -> Tensor:
    """Which part of the answer each action of a turn belongs to (T,): BEFORE, INSIDE, CLOSING or AFTER; a token that spans two
    belongs to the later one. The first action past BEFORE decides whether there will be a thought."""
    out_T = torch.full((len(turn),), BEFORE)
    found = thought_of(turn.text)
    if not found.opened:
        return out_T
    lead = len(turn.observation.lead)

    def first(char: int) -> int:
        """The first action that ends behind this character; decoded prefixes only grow, so halving finds it."""
        low, high = 0, len(turn)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if lead + len(decode(turn.actions[: middle + 1])) > char else (middle + 1, high)
        return low

    out_T[first(found.start) :] = INSIDE
    if found.closed:
        out_T[first(found.end) :] = CLOSING
        out_T[first(found.answer) :] = AFTER
    return out_T


def without_lead(lead: str, text: str) -> str:
    """What the policy has to write so that its answer says `text`, when `lead` was written for it.

    A text that begins as the lead does goes on from there. One without tags under a thought that is open closes it first: it
    answers without a thought; under a thought that was opened and closed an empty one is left out. Any other text goes on from
    the lead as it is.
    """
    if not lead or not text:
        return text
    given = thought_of(lead)
    if given.closed and thought_of(text).closed and thought_of(text).empty:
        return text[thought_of(text).answer :].lstrip()
    for begun in (lead, lead.rstrip(), *([OPEN] if lead.startswith(OPEN) else [])):
        if text.startswith(begun):
            return text[len(begun) :]
    return f"{CLOSE}\n\n{text}" if given.opened and not given.closed and CLOSE not in text else text
