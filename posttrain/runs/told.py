"""What a run understood of its data, in a few lines: columns, rows, what was left out, the grader, the first prompt."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from posttrain.core.answers import conversation, demonstration
from posttrain.core.protocols import Environment
from posttrain.core.terminal import shown
from posttrain.core.types import Prompt
from posttrain.environments.conversions import KINDS, compared
from posttrain.environments.data import DataEnvironment
from posttrain.environments.language.listed import Listed
from posttrain.environments.mixed import Mixed
from posttrain.environments.stream import Stream
from posttrain.environments.understood import lines, understood_of

_PROMPT = 300  # characters of the first prompt that are shown
# reward -> what about the gold answers made it the grader
_WHY = {
    "numeric": "the gold answers are numbers", "choice": "the gold answers are letters of choices",
    "math": "the gold answers are LaTeX", "exact-match": "the gold answers are texts",
}  # fmt: skip


def understood(env: Environment, policy: Any = None, kind: str = "", reward: str = "") -> list[str]:
    """Lines for the start of a run; kind is what its method learns from ("pairs", "demonstrations" ...; "" for sampled answers)."""
    if isinstance(env, Mixed):
        return [f"{name}: {line}" for name, one in env.tasks.items() for line in understood(one, policy, kind, reward)]
    found, told = understood_of(env), []
    if found is not None:
        told = lines(found, sizes(env), getattr(env, "left_out", {}))
    told.append(graded_by(env, kind, reward))
    first = env.prompt(0, "train")
    seen = policy.rendered(first) if hasattr(policy, "rendered") else first.last
    told += [f"first prompt: {shown(seen, _PROMPT)}"] if seen else []
    return [line for line in (*told, first_answer(first, kind)) if line]


def sizes(env: Environment) -> Mapping[str, int]:
    """Rows of each split."""
    if isinstance(env, DataEnvironment):
        return {split: len(some) for split, some in env.splits.items()}
    if isinstance(env, Listed):
        return {"train": len(env.train), "test": len(env.test)}
    return {"train": env.rows, "test": len(env.test)} if isinstance(env, Stream) else {}


def left_out(env: Environment) -> int:
    """How many rows were not taken."""
    return sum(getattr(env, "left_out", {}).values())


def tell_left_out(env: Environment) -> None:
    """A warning where rows were not taken, with the reasons."""
    if left_out(env):
        gone = "; ".join(f"{n:,} {reason}" for reason, n in env.left_out.items() if n)  # type: ignore[attr-defined]
        logging.getLogger("posttrain").warning("%s: left out %s", env.name, gone)


def graded_by(env: Environment, kind: str, reward: str) -> str:
    """What says how good an answer is."""
    if kind in KINDS:
        by = "a good answer is ranked above a bad one" if kind == "labels" else "the preferred answer is ranked higher"
        what = {"pairs": "pairs", "lists": "ranked lists", "labels": "good and bad answers"}[kind]
        return f"learned from: {what}; measured by how often {by}"
    own = getattr(env, "reward", None)
    by = getattr(own, "name", "") if env.graded else ""
    chosen = getattr(getattr(env, "layout", None), "reward", "")
    why = f" ({_WHY[by]})" if by in _WHY and not chosen else ""
    grader = (
        f"{by}{why}"
        if by
        else "the task's own grader"
        if env.graded or env.opens
        else "nothing: there are no gold answers"
    )
    if kind == "demonstrations":
        return f"learned from: the written answers; measured by {grader}"
    return f"reward: {reward}; measured by {grader}" if reward else f"graded by: {grader}"


def sure(pair: Prompt) -> str:
    """How sure a pair is, in brackets."""
    return f" (with probability {pair.info['preferred']:.2f})" if "preferred" in pair.info else ""


def first_answer(first: Prompt, kind: str) -> str:
    """What is imitated, preferred, or right, of the first prompt."""
    if kind == "pairs":
        chosen, rejected = (shown(str(first.info.get(k)), 80) for k in ("chosen", "rejected"))
        return f"first pair: {chosen} > {rejected}{sure(first)}"
    if kind == "lists":
        return f"first list: {' > '.join(shown(str(text), 60) for text in compared(first, kind))}"
    if kind == "labels":
        return f"first answer, {'good' if first.info.get('label') else 'bad'}: {shown(str(first.info.get('response')), 120)}"
    if kind == "demonstrations":
        if (whole := conversation(first)) is not None:
            return f"first demonstration: {sum(m['role'] == 'assistant' for m in whole)} turns of the assistant"
        said = demonstration(first)
        return "" if said is None else f"first demonstration: {shown(said, 120)}"
    return "" if first.answer is None else f"its gold answer: {shown(str(first.answer), 120)}"
