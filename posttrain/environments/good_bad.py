"""Good and bad answers from a file, one answer a row and nothing to compare it with: what KTO learns from.

{"prompt": ..., "completion": ..., "label": true}                  true, 1, "good", "desirable"; false, 0, "bad", "undesirable"
{"messages": [{"role": "user", ...}, {"role": "assistant", ...}], "label": false}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from posttrain.core.types import Prompt
from posttrain.environments.data import question_of
from posttrain.environments.fields import PREFERENCES, cell, checked_text, conversation_of, need, reply, with_system
from posttrain.environments.questions import Layout, Raw
from posttrain.environments.rankings import prompt_of
from posttrain.environments.strengths import good, who


@dataclass(frozen=True)
class Judged:
    """One answer to a prompt, and whether somebody called it good."""

    prompt: Prompt
    response: str
    label: bool

    def as_prompt(self) -> Prompt:
        """The prompt with its answer and its label."""
        return replace(self.prompt, info={**self.prompt.info, "response": self.response, "label": self.label})


def label_builder(columns: dict[str, str], seen: list[str], called: str, layout: Layout) -> Callable[[Raw], Judged]:
    """row -> Judged. ValueError says what is wrong with a row."""
    says = need("label", columns, seen, called) if seen else ""
    answers = columns.get("response", "")
    asks = (columns.get("question") if answers else "") or columns.get("messages", "")
    if seen and not asks:
        need("question" if answers else "response", columns, seen, called)
    used = {columns.get(f) for f in PREFERENCES["labels"] if f not in ("question", "messages")} | {asks}

    def build(row: Raw) -> Judged:
        for column in (says, asks, *filter(None, (answers,))):
            if row.get(column) is None:
                raise ValueError(f"no {column!r} in it")
        label = good(row[says])
        if label is None:
            rating = isinstance(row[says], (int, float))
            more = " (a rating is none: say in a column of its own which ratings are good)" if rating else ""
            raise ValueError(
                f"{says!r} is {row[says]!r:.60}; a label is true or false, 1 or 0, good or bad, desirable or undesirable{more}"
            )
        if answers:
            content = prompt_of(row, columns, asks)
            said = row[answers]
            before, text = ((), checked_text(said).strip()) if isinstance(said, str) else reply(said)
            if before:
                raise ValueError(f"{answers!r} is a conversation of its own; put all of it into one column `messages`")
        else:
            before, text = reply(list(conversation_of(row[asks])))
            if not before:
                raise ValueError("the conversation begins with the assistant: there is nothing that it answers")
            content = with_system(before, cell(row, columns, "system"))
        info = {k: v for k, v in row.items() if k not in used} | who(row, columns)
        return Judged(Prompt("", content, None, info), text, label)

    return build


def doubts(answers: Sequence[Judged]) -> list[str]:
    """How many are good, and what is odd about them, one sentence each."""
    twice = len(answers) - len({row_key(x) for x in answers})
    both = sum(len(set(labels)) > 1 for labels in by_answer(answers).values())
    fine, empty = sum(x.label for x in answers), sum(not x.response for x in answers)
    out = [f"labels: {fine:,} good and {len(answers) - fine:,} bad answers"]
    if answers and fine in (0, len(answers)):
        out += [
            f"one-sided: all answers are {'good' if fine else 'bad'}, so none is told from its opposite, and held-out ones measure nothing"
        ]
    out += [f"repeated: {twice:,} answers stand there twice; FILE(unique=True) leaves them out"] if twice else []
    out += [f"contradictory: {both:,} answers are called both good and bad"] if both else []
    return out + ([f"empty: {empty:,} answers have no text"] if empty else [])


def by_answer(answers: Sequence[Judged]) -> dict[tuple[str, str], list[bool]]:
    """The labels of each answer to each question."""
    out: dict[tuple[str, str], list[bool]] = {}
    for x in answers:
        out.setdefault((question_of(x), x.response), []).append(x.label)
    return out


def row_key(x: Judged) -> tuple[object, ...]:
    """What makes a row the same as another."""
    return question_of(x), x.response, x.label, x.prompt.info.get("annotator")
