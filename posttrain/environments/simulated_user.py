"""A user who knows what the assistant must find out: `--task "simulated_user(file='bookings.jsonl')"`.

    {"opening": "I would like a table.", "facts": {"day|date": "Friday", "people|persons": "four"}}

The assistant asks, the user tells what was asked for, and the assistant answers between <answer> tags; its reward is the share of the
facts that are in the answer (or whether it is the row's `answer`). The user follows a script: a fact is told when one of its names is
mentioned, at most `reveal` of them per turn. With user='model' a second model, frozen, plays the role `user` (`--user MODEL`): it is told
the facts and speaks for itself, and only the assistant's tokens are trained. A user who was not answered within `patience` turns leaves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.answers import final_answer, marked, plain
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.environments.base import SPLITS
from posttrain.environments.held_out import one_in_ten
from posttrain.environments.rows import Bad, read_rows

ASK = "Ask me what you need to know. When you know it, answer between <answer> and </answer>."
LOST = "I do not know what you mean. What do you want to know?"
PERSON = "You are a person who talks to an assistant. You said: {opening}\nYou know: {facts}\nTell only what you are asked, in one short sentence."
_WORDS = 4  # words of an answer for each word of the facts: one that lists everything says nothing


@dataclass(frozen=True)
class Scenario:
    """What a user says first, and what they know: the names of each fact, and the fact."""

    opening: str
    facts: tuple[tuple[tuple[str, ...], str], ...]
    answer: str | None = None

    def known(self) -> str:
        return "; ".join(f"{names[0]}: {fact}" for names, fact in self.facts)

    def asked(self, text: str) -> list[str]:
        """The facts that a text asks for, in the order in which it does."""
        found = []
        for names, fact in self.facts:
            hits = [m.start() for n in names if (m := re.search(rf"(?<!\w){re.escape(n)}(?!\w)", text, re.IGNORECASE))]
            if hits:
                found.append((min(hits), f"{names[0]}: {fact}"))
        return [told for _, told in sorted(found)]

    def worth(self, answer: str) -> float:
        """The share of the facts in an answer of about their length; with a right answer of its own, whether it is that."""
        said = plain(answer)
        if self.answer is not None:
            return float(said == plain(self.answer))
        if len(said.split()) > _WORDS * sum(len(fact.split()) for _, fact in self.facts):
            return 0.0
        hits = [bool(re.search(rf"(?<!\w){re.escape(plain(fact))}(?!\w)", said)) for _, fact in self.facts]
        return sum(hits) / len(hits)


class SimulatedUser(Environment):
    """Conversations with a user; rows are scenarios."""

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], user: str = "script", patience: int = 6, reveal: int = 1, name: str = "user"
    ) -> None:  # fmt: skip
        if user not in ("script", "model"):
            raise UserError(f"user is {user!r}; use 'script', or 'model' with --user MODEL")
        for key, value in {"patience": patience, "reveal": reveal}.items():
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{key} of simulated_user is {value!r}; it must be a whole number of at least 1")
        self.name, self.patience, self.reveal = f"simulated_user/{name}", patience, reveal
        self.roles = ("policy",) if user == "script" else ("policy", "user")
        self.splits = one_in_ten([scenario(row, i) for i, row in enumerate(rows, start=1)], self.name)

    def size(self, split: str) -> int:
        return len(self.splits[split])

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Scenario number `index`; passes over a split repeat it."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        place = index % len(self.splits[split])
        one = self.splits[split][place]
        return Prompt.text(
            f"{self.name}-{split}-{place}", f"{one.opening}\n{ASK}", one.answer, split=split, place=place
        )

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Talk(self, self.splits[prompt.info["split"]][prompt.info["place"]])


class Talk(Episode):
    """One conversation; whose turn it is decides what a turn means."""

    def __init__(self, of: SimulatedUser, one: Scenario) -> None:
        self.of, self.one = of, one
        self.turns, self.met, self.listens = (
            0,
            False,
            True,
        )  # of the assistant; whether the user model has spoken; who moved

    def step(self, turn: Turn) -> Step:
        if not self.listens:  # the user model has spoken
            self.listens = True
            said = final_answer(turn.text) or LOST
            return Step([{"role": "user", "content": said}], role="policy")
        self.turns += 1
        answer = marked(turn.text) if turn.stopped else None
        if answer is not None:
            return Step(None, reward=self.one.worth(answer))
        if self.turns >= self.of.patience:
            return Step(None, reward=0.0, stop="max_turns")
        asked = final_answer(turn.text) or ""
        if "user" not in self.of.roles:
            told = self.one.asked(asked)[: self.of.reveal]
            return Step([{"role": "user", "content": ". ".join(told) + "." if told else LOST}], reward=0.0)
        person = PERSON.format(opening=self.one.opening, facts=self.one.known())
        first = [] if self.met else [{"role": "system", "content": person}]
        self.met, self.listens = True, False
        return Step([*first, {"role": "user", "content": asked or "..."}], reward=0.0, role="user")


def scenario(row: Mapping[str, Any], number: int) -> Scenario:
    """A row as a scenario; a sentence for one that is none."""
    opening, facts = row.get("opening"), row.get("facts")
    if not isinstance(opening, str) or not opening.strip():
        raise UserError(f'row {number} has no opening; a scenario is {{"opening": text, "facts": {{name: text}}}}')
    if (
        not isinstance(facts, Mapping)
        or not facts
        or not all(str(v).strip() and str(k).strip("| ") for k, v in facts.items())
    ):
        raise UserError(
            f'row {number} has no facts; they are {{"day|date": "Friday"}}: names that are asked for, and what is told'
        )
    known = tuple((tuple(n.strip() for n in str(k).split("|") if n.strip()), str(v)) for k, v in facts.items())
    answer = row.get("answer")
    return Scenario(opening.strip(), known, None if answer is None else str(answer))


def simulated_user(file: str = "", **options: Any) -> SimulatedUser:
    """The Environment of a file of scenarios; options: user ('script' or 'model'), patience, reveal."""
    if not file:
        raise UserError("name a file of scenarios: --task \"simulated_user(file='bookings.jsonl')\"")
    rows = []
    for where, row in read_rows(file):
        if isinstance(row, Bad):
            raise UserError(f"{file}, {where}: {row.reason}")
        rows.append(row)
    return SimulatedUser(rows, name=Path(file).stem, **options)
