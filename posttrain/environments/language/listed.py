"""Prompts that are simply listed: rows of preferences or demonstrations that a phase wrote, or a data set of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.core.types import Prompt
from posttrain.environments.preferences import Pair
from posttrain.environments.understood import Understood


@dataclass(frozen=True)
class Listed(Environment):
    """A finite environment without a grader; test is what is held out."""

    name: str
    train: tuple[Prompt, ...]
    test: tuple[Prompt, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)  # rows that were not taken, by reason
    understood: Understood = field(default_factory=Understood, compare=False)

    @property
    def size(self) -> int:
        return len(self.train)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        rows = self.test if split == "test" else self.train
        if not rows:
            raise UserError(f"{self.name} has no {split} prompts")
        return rows[index % len(rows)]

    def grade(self, prompt: Prompt, text: str) -> float:
        raise UserError(f"{self.name} has no grader of its own; say which reward to use")

    def validate(self, n: int) -> list[str]:
        """Ids must differ: they are the identity of every random draw."""
        ids = [p.id for p in (*self.train, *self.test)]
        return [] if len(set(ids)) == len(ids) else [f"{self.name}: two prompts have the same id"]


def from_rows(name: str, rows: Iterable[dict[str, Any]], held_out: float = 0.2) -> Listed:
    """The rows of `label_pairs`, the last part of them held out; how sure a row is, and who says so, comes along where it is told."""
    kept = ("chosen", "rejected", "preferred", "annotator")
    prompts = [
        Prompt(r["id"], tuple(r["prompt"]), None, r.get("info", {}) | {k: r[k] for k in kept if k in r}) for r in rows
    ]
    cut = len(prompts) - int(held_out * len(prompts))
    return Listed(name, tuple(prompts[:cut]), tuple(prompts[cut:]))


def from_pairs(name: str, train: Iterable[Pair], test: Iterable[Pair]) -> Listed:
    """Pairs of a data set; the preferred answer is also the demonstration."""
    return Listed(name, tuple(map(as_prompt, train)), tuple(map(as_prompt, test)))


def as_prompt(pair: Pair) -> Prompt:
    """The prompt of a pair, with both answers and how sure it is that the first is preferred, where somebody says."""
    both: dict[str, Any] = {"chosen": pair.chosen, "rejected": pair.rejected, "demonstration": pair.chosen}
    both |= {} if pair.preferred is None else {"preferred": pair.preferred}
    return Prompt(pair.prompt.id, pair.prompt.content, None, {**pair.prompt.info, **both})
