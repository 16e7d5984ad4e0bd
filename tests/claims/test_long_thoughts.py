"""The start that rambles: what is imitated, and what is read off answers."""

from __future__ import annotations

from typing import Any

from claims.worlds.long_thoughts import TASK, by_level, longer
from posttrain.environments.task import task


def test_the_last_sum_is_written_again() -> None:
    text = "<think>6*5=30 50-30=20</think>20"
    assert longer(text, 2) == "<think>6*5=30 50-30=20 50-30=20 50-30=20</think>20"
    assert longer(text, 0) == text
    assert longer("<think>6*5=", 2) == "<think>6*5=" and longer("20", 2) == "20"


class Answer(str):
    @property
    def text(self) -> str:
        return str(self)

    @property
    def truncated(self) -> bool:
        return not self.endswith("!")


class Speaker:
    """Easy questions are answered at once and right, hard ones after a thought that is cut off."""

    def sample(self, prompts: list[Any], *rest: Any) -> list[list[Answer]]:
        return [[Answer(f"{p.answer}!" if p.info["level"] == 2 else "<think>so")] for p in prompts]


def test_easy_and_hard_are_told_apart() -> None:
    env = task(TASK, think=True)
    object.__setattr__(env, "grade", lambda p, text: float(text.strip("!") == p.answer))
    found = by_level(8, {"max_tokens": 8})(Speaker(), env)  # type: ignore[arg-type]
    assert (found["easy_accuracy"], found["hard_accuracy"], found["cut"]) == (1.0, 0.0, 0.5)
    assert (found["easy_thinks"], found["hard_thinks"], found["chooses"], found["rarer"]) == (0.0, 1.0, 1.0, 0.5)
    assert found["longer_when_wrong"] == found["hard_length"] - found["easy_length"]
    assert found["hard_length"] == len("<think>so") > found["easy_length"]
