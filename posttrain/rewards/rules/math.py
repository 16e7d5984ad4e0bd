"""The answer equals the gold one as mathematics: 1/2 is 0.5 is \\frac{1}{2}."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from posttrain.core.answers import boxed, final_answer, golds, marked
from posttrain.core.errors import UserError
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.rewards.runtime.worker import Pool


@reward(title="Mathematical equality")
def math(prompt: Prompt, text: str, timeout: float = 5.0) -> float:
    """Mathematical equality: 1 when math-verify finds the final answer equal to the gold one.

    r = [simplify(answer - gold) == 0], and the same for sets, intervals, matrices and equations
    The comparison runs in a process of its own that is killed after `timeout` seconds: a failed reward, not a 0.
    """
    tail = final_answer(text)
    if not tail:
        return 0.0
    mark = marked(tail)
    answers = [_gold(g) for g in golds(prompt)]
    if mark is not None and any(_spelt(mark) == _spelt(g) for g in answers):
        return 1.0  # most right answers are letter by letter the same, and cost nothing
    asked = tail if mark is None else f"\\boxed{{{mark}}}"
    with _pool(os.getpid()).worker() as worker:
        return float(any(worker.ask({"gold": g, "answer": asked}, timeout) for g in answers))


def _gold(answer: object) -> str:
    """The gold answer; a whole solution is read in its last box."""
    text = str(answer)
    box = boxed(text)
    return text.strip().strip("$") if box is None else box


def _spelt(text: str) -> str:
    return "".join(text.replace("\\left", "").replace("\\right", "").replace("\\dfrac", "\\frac").split()).strip("$.")


@cache
def _pool(process: int) -> Pool:
    """The pool of this process: pipes shared with a fork would mix up the answers."""
    ready()
    return Pool(Path(__file__).with_name("_math_worker.py"), max(1, min(4, (os.cpu_count() or 2) // 2)))


def ready(**_: object) -> None:
    """Refuse to start without math-verify."""
    if find_spec("math_verify") is None:
        raise UserError("the reward 'math' needs math-verify, which is not installed; type: pip install math-verify")


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    half = Prompt.text("math/half", "1/2?", r"\frac{1}{2}")
    point = Prompt.text("math/point", "Where?", r"\left( 3, \frac{\pi}{2} \right)")
    wrong = r"\boxed{(3, \frac{\pi}{3})}"
    return problems(math, [(half, "so \\boxed{0.5}", "\\boxed{0.6}"), (point, r"(3, \frac{\pi}{2})", wrong)])
