"""Every data set of reasoning-gym as an Environment: `reasoning_gym("chain_sum", size=500, seed=0, max_terms=4)`.

Test questions come from another seed, and a training question that is also a test question is never asked. The grade is
the data set's own score, within [0, 1]; some of them give part marks, and a few give a little for any attempt. Where a
set's score has a hole that an optimiser would find, REGRADED replaces it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

from posttrain.core.answers import final, number, same
from posttrain.core.errors import UserError, nearest, unknown
from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt
from posttrain.environments.base import SPLITS
from posttrain.environments.data import THINK

_FAR = 1 << 24  # items are drawn from seed + index, so the other seed must be further away than any size
_TEST = 100  # test questions at most
_TRIES = 100
_GOLD = ("possible_answer", "example_answer", "example_correct_answer")  # where a set with many answers keeps one
_NAN = re.compile(r"\bnan\b", re.IGNORECASE)
# sets whose own score (0.1.25) can be had for nothing: any text passes the first, "0" the second
REGRADED: dict[str, Callable[[str, str], bool]] = {
    "game_of_life_halting": same,
    "coin_flip": lambda answer, gold: _close(answer, gold, 1e-4),
}


def _close(answer: str, gold: str, tolerance: float) -> bool:
    a, b = number(answer), number(gold)
    return a is not None and b is not None and abs(a - b) <= tolerance


class ReasoningGym(Environment):
    """One data set of the package; items are a function of (seed, index)."""

    def __init__(self, name: str, size: int = 500, seed: int = 0, think: bool = False, **config: Any) -> None:
        if size < 1:
            raise UserError(f"reasoning-gym/{name} needs size >= 1, got {size}")
        self.short, self.size, self.seed, self.suffix = name, size, seed, THINK if think else ""
        self.name = f"reasoning-gym/{name}"
        self.sets = {
            "train": _create(name, {**config, "size": size, "seed": seed}),
            "test": _create(name, {**config, "size": size, "seed": seed + _FAR}),
        }
        self.entry = lru_cache(maxsize=4096)(self._entry)
        self._tests: list[int] | None = None
        self._asked: set[str] = set()

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Question number `index`; passes over a split repeat it."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        tests = self.tests()
        place = tests[index % len(tests)] if split == "test" else self._training(index % self.size)
        entry = self.entry(split, place)
        info = {"task": self.name, "split": split, "place": place}
        return Prompt.text(
            f"{self.name}-{self.seed}-{split}-{place}", entry["question"] + self.suffix, gold(entry), **info
        )

    def tests(self) -> list[int]:
        """Where the different test questions are; drawn at the first call."""
        if self._tests is None:
            found: dict[str, int] = {}
            for place in range(min(self.size, _TEST)):
                found.setdefault(self.entry("test", place)["question"], place)
            self._tests, self._asked = list(found.values()), set(found)
        return self._tests

    def _training(self, place: int) -> int:
        """This place, or the next that holds no test question."""
        for step in range(min(self.size, _TRIES)):
            here = (place + step) % self.size
            if self.entry("train", here)["question"] not in self._asked:
                return here
        raise UserError(f"{self.name} has too few different questions for a training and a test set")

    def _entry(self, split: str, place: int) -> dict[str, Any]:
        return dict(self.sets[split][place])

    def grade(self, prompt: Prompt, text: str) -> float:
        """The data set's score of the final answer (in <answer> tags or not), within [0, 1]; no answer scores 0."""
        answer = final(text)
        if answer is None:
            return 0.0
        if self.short in REGRADED:
            return float(REGRADED[self.short](answer, str(prompt.answer)))
        if _NAN.search(answer):
            return 0.0  # arithmetic with nan makes some scores come out as 1
        entry, score = self.entry(prompt.info["split"], prompt.info["place"]), self.sets["train"].score_answer
        try:
            value = float(score(answer, entry))
        except Exception:  # some sets raise on what they cannot read
            if prompt.answer is not None:
                score(prompt.answer, entry)  # raises too when it is the grader that is broken
            value = 0.0
        return min(max(value, 0.0), 1.0)

    def validate(self, n: int) -> list[str]:
        """The grader graded: gold answers must score 1, no answer 0, and nonsense less than 1."""
        problems = []
        for index in range(n):
            prompt = self.prompt(index, SPLITS[index % 2])
            if prompt.answer is not None and (got := self.grade(prompt, prompt.answer)) != 1.0:
                problems.append(f"{prompt.id}: gold answer {prompt.answer!r:.60} scores {got}")
            if (got := self.grade(prompt, "qwxz")) >= 1.0:
                problems.append(f"{prompt.id}: nonsense scores {got}")
            if self.grade(prompt, "") != 0.0:
                problems.append(f"{prompt.id}: an empty answer scores")
        return problems


def gold(entry: dict[str, Any]) -> str | None:
    """The answer of an entry; where many are right, the example that the set keeps, if it does."""
    if entry["answer"] is not None:
        return str(entry["answer"])
    metadata = entry.get("metadata", {})
    kept = next((metadata[key] for key in _GOLD if metadata.get(key) is not None), None)
    return json.dumps(kept) if isinstance(kept, dict) else kept


def reasoning_gym(name: str, size: int = 500, seed: int = 0, think: bool = False, **config: Any) -> ReasoningGym:
    """The Environment of one reasoning-gym data set; `config` is the set's own."""
    return ReasoningGym(name, size, seed, think, **config)


def names() -> list[str]:
    """Every data set of the package."""
    return sorted(_package().factory.DATASETS)


def _package() -> ModuleType:
    try:
        package = import_module("reasoning_gym")
        import_module("reasoning_gym.factory")
    except ImportError:
        raise UserError("this task needs reasoning-gym; type: pip install 'posttrain[reasoning-gym]'") from None
    return package


def _create(name: str, config: dict[str, Any]) -> Any:
    package = _package()
    known = package.factory.DATASETS
    if name not in known:
        raise unknown("reasoning-gym data set", name, known)
    fields = list(known[name][1].__dataclass_fields__)
    for key in config:
        if key not in fields:
            close = nearest(key, fields)
            hint = f"did you mean {close!r}?" if close else f"it has: {', '.join(fields)}"
            raise UserError(f"reasoning-gym/{name} has no setting {key!r}; {hint}")
    try:
        return package.create_dataset(name, **config)
    except (AssertionError, ValueError, TypeError) as error:
        raise UserError(f"reasoning-gym/{name} cannot be made with these settings: {error}") from None
