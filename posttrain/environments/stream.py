"""Data sets larger than memory: rows are read from the disk when they are asked for.

The order is a function of (seed, pass, place) and nothing is remembered between steps, so a run resumes exactly. Files are JSON
lines or Parquet. What is held out: the split that is given, else up to 512 rows from all over the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part, find
from posttrain.core.types import Prompt
from posttrain.environments.base import SPLITS
from posttrain.environments.data import attempt, find_splits, guess_reward, load, maker, numbered, question_of
from posttrain.environments.feedback import builder_of, kind_of, prompts_of, refuse_stream
from posttrain.environments.fields import PREFERENCES
from posttrain.environments.preferences import AS_THEY_ARE, Reading
from posttrain.environments.questions import PLAIN, Layout
from posttrain.environments.rows import Bad, Files, name_of
from posttrain.environments.shelf import Shelf
from posttrain.environments.understood import Understood

_PEEK, _HELD_OUT, _TRIES = 100, 512, 1000


class Stream(Environment):
    """Prompts of rows on the disk; the training split is endless, one pass after another."""

    def __init__(self, name: str, shelf: Shelf, make: Callable[[Any], Any], seed: int, skip_bad: bool) -> None:
        self.name, self._shelf, self._make, self.seed, self.skip_bad = name, shelf, make, seed, skip_bad
        self.digest, self.rows = shelf.digest, shelf.count
        self.reward: Part | None = None
        self.chosen = False  # the reward was named, so it may need no gold answers
        self.test: tuple[Prompt, ...] = ()
        self.understood = Understood()
        self.turned: Callable[[Any], list[Prompt]] = lambda item: [
            item
        ]  # preferences as prompts; none for what says nothing
        self._changes: tuple[Callable[[Prompt, str], Prompt | None], ...] = ()
        self._asked: frozenset[str] = frozenset()

    @property
    def graded(self) -> bool:
        """Whether there are gold answers, as far as the held-out rows say, or a reward that was chosen."""
        return self.reward is not None and (self.chosen or any(p.answer is not None for p in self.test))

    def but(self, change: Callable[[Prompt, str], Prompt | None]) -> Stream:
        """The same rows with prompts changed, or stepped over."""
        other = Stream(self.name, self._shelf, self._make, self.seed, self.skip_bad)
        other.reward, other.chosen, other.understood, other._asked = (
            self.reward,
            self.chosen,
            self.understood,
            self._asked,
        )
        other.turned, other._changes = self.turned, (*self._changes, change)
        other.test = tuple(q for p in self.test if (q := change(p, "test")) is not None)
        return other

    def holding_out(self, test: list[Prompt]) -> Stream:
        """With these prompts as the test split; their questions are never trained on."""
        self.test, self._asked = tuple(test), frozenset(question_of(p) for p in test)
        return self

    def size(self, split: str = "train") -> int:
        """How many prompts a split has; 0 for the training split, which begins anew."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        return len(self.test) if split == "test" else 0

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Prompt number `index`; a row that cannot be trained on is stepped over to the next in the order."""
        if split == "test":
            if not self.test:
                raise UserError(f"{self.name} has no test questions")
            return self.test[index % len(self.test)]
        for k in range(_TRIES):
            found = self.at(self._shelf.place(index + k, self.name, self.seed))
            if (
                found is not None
                and question_of(found) not in self._asked
                and (found := self._changed(found)) is not None
            ):
                return found
        raise UserError(f"{self.name}: {_TRIES} rows in a row cannot be trained on; posttrain data says why")

    def _changed(self, prompt: Prompt) -> Prompt | None:
        for change in self._changes:
            if (made := change(prompt, "train")) is None:
                return None
            prompt = made
        return prompt

    def at(self, number: int) -> Prompt | None:
        """The prompt of a row; None for a bad one or a tie where those are skipped, else an error that names it."""
        where, row = self._shelf.row(number)
        item = row if isinstance(row, Bad) else attempt(self._make, row)
        if isinstance(item, Bad):
            if self.skip_bad:
                return None
            raise UserError(
                f"{self.name}, {where}: {item.reason}; with (skip_bad=True) after the file such rows are stepped over"
            )
        made = self.turned(numbered(item, self.name, "", number))
        return made[0] if made else None

    def grade(self, prompt: Prompt, text: str) -> float:
        """What the reward says, within [0, 1]."""
        if self.reward is None:
            raise UserError(f"{self.name} has no grader of its own; say which reward to use")
        return min(max(float(self.reward(prompt, text)), 0.0), 1.0)


def stream(
    source: Any, test: Any = None, layout: Layout = PLAIN, seed: int = 0, skip_bad: bool = False, want: str = "",
    how: Reading = AS_THEY_ARE,
) -> Stream:  # fmt: skip
    """An Environment of the rows of JSONL or Parquet files that are never in memory together; want: the kind of preferences that
    is learned from (pairs, lists, labels), where it is no task of questions."""
    sources = find_splits(source, test)
    if not isinstance(sources.get("train"), (str, Path, Files)):
        raise UserError(
            "--stream reads the training rows from files; name a .jsonl or .parquet file, a folder or a hub id"
        )
    files = sources["train"] if isinstance(sources["train"], Files) else Files([Path(sources["train"])])
    name = name_of(source) if isinstance(source, (str, Path)) else name_of(files)
    shelf = Shelf(files)
    if not shelf.count:
        raise UserError(f"{name} has no rows")
    peeked = [shelf.row(i)[1] for i in range(min(_PEEK, shelf.count))]
    kind = (kind_of([row for row in peeked if isinstance(row, dict)], layout.fields) or want) if want else ""
    build = builder_of(kind, how) if kind else None
    layout = replace(layout, usual=PREFERENCES[kind]) if kind else layout
    make, understood = maker(peeked, name, layout, build)
    env = Stream(name, shelf, make, seed, skip_bad)
    if kind:
        refuse_stream(kind, want, how)
        env.turned = lambda item: prompts_of(item, kind, want, how)
    env.holding_out(_held_out(env, sources, layout, build))
    env.understood = replace(understood, split=_said(env, sources, shelf))
    env.understood = env.understood.noting(
        f"converted: each of the {kind} became one of the {want}" if kind != want else ""
    )
    if not want:
        part = layout.reward or guess_reward({"test": list(env.test)})
        env.reward, env.chosen = find(part, "reward") if isinstance(part, str) else part, bool(layout.reward)
    return env


def _held_out(env: Stream, sources: Mapping[str, Any], layout: Layout, build: Any) -> list[Prompt]:
    if "test" in sources:
        rows = load(sources["test"], layout, env.skip_bad, build).rows
        return [p for i, x in enumerate(rows) for p in env.turned(numbered(x, env.name, "test", i))]
    places = env._shelf.spread(min(_HELD_OUT, max(1, env.rows // 10)))
    return [p for i in places if (p := env.at(i)) is not None]


def _said(env: Stream, sources: Mapping[str, Any], shelf: Shelf) -> str:
    held = "" if "test" in sources else f"; {len(env.test)} of them are held out"
    way = "in one order" if len(shelf.blocks) == 1 else f"row group by row group, {len(shelf.blocks):,} of them"
    return f"read from the disk as they are needed, shuffled {way}{held}"
