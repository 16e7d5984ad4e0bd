"""What a loader took a data set for: told at the start of a run, and by `posttrain data`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# field -> what its column is used as
USES = {
    "question": "the question", "messages": "the conversation", "input": "written under the question",
    "choices": "the choices, with letters", "system": "the system message", "answer": "the answer",
    "prefill": "what the answer begins with",
    "demonstration": "imitated in place of the answer",
    "chosen": "the preferred answer", "rejected": "the other answer", "preferred": "how likely the first is preferred",
    "chosen_votes": "votes for the first", "rejected_votes": "votes for the other", "votes": "a vote of each annotator",
    "annotators": "who voted", "annotator": "who says so", "score_chosen": "the score of the first",
    "score_rejected": "the score of the other", "responses": "the answers", "scores": "their scores", "ranks": "their ranks",
    "ranking": "their places, best first", "label": "good or bad", "response": "the answer that was given",
    "tokens": "its token ids", "logp": "its log-probabilities", "reward": "what it earned", "mask": "its mask",
    "gold": "the gold answer",
}  # fmt: skip


@dataclass(frozen=True)
class Understood:
    """The columns of each field, those that no prompt shows, how rows were divided, and the first bad row."""

    columns: Mapping[str, str] = field(default_factory=dict)  # field -> column
    unused: tuple[str, ...] = ()  # not in any prompt; rewards can read them
    split: str = ""  # how train and test were told apart
    bad: str = ""  # the first row that could not be used, and why
    notes: tuple[str, ...] = ()  # what else a reader should know

    def noting(self, *more: str) -> Understood:
        return replace(self, notes=(*self.notes, *(m for m in more if m and m not in self.notes)))


def used(columns: Mapping[str, str], seen: list[str], fields: tuple[str, ...]) -> Understood:
    """The columns that prompts are made of, and the rest; a column that stands for two fields is told once."""
    mine = {f: columns[f] for f in USES if f in columns and f in fields}
    if "messages" in mine and "question" in mine:
        mine.pop("messages" if {"answer", "chosen", "responses", "response"} & set(mine) else "question")
    return Understood(mine, tuple(c for c in seen if c not in mine.values()))


def understood_of(env: Any) -> Understood | None:
    """What is known about how an environment was read; None for one that is not made of rows."""
    found = getattr(env, "understood", None)
    return found if isinstance(found, Understood) else None


def lines(found: Understood, sizes: Mapping[str, int], left_out: Mapping[str, int]) -> list[str]:
    """Columns, rows of each split, and rows that were left out with the reason, as sentences."""
    told = []
    if found.columns:
        said = ", ".join(f"{column} ({USES.get(f, f)})" for f, column in found.columns.items())
        rest = f"; not in the prompt: {_few(found.unused)}" if found.unused else ""
        told.append(f"columns: {said}{rest}")
    counted = ", ".join(f"{n:,} to {'train' if split == 'train' else 'test'} on" for split, n in sizes.items())
    told.append(f"rows: {counted}{f' ({found.split})' if found.split else ''}")
    for reason, n in left_out.items():
        if n:
            first = f"; the first, {found.bad}" if reason == "bad rows" and found.bad else ""
            told.append(f"left out: {n:,} {reason}{first}")
    return [*told, *found.notes]


def _few(names: tuple[str, ...], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
