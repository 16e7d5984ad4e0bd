"""Preference pairs from a file: a prompt, the answer that was preferred, the one that was not, and how sure that is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core.errors import UserError, unknown
from posttrain.core.types import Message, Prompt
from posttrain.environments.agreement import doubts, once, row_key, voted
from posttrain.environments.base import SPLITS
from posttrain.environments.data import Loaded, find_splits, load, merged, numbered, order, split_up
from posttrain.environments.fields import (
    PREFERENCES,
    cell,
    checked_text,
    conversation_of,
    messages,
    need,
    reply,
    under,
    with_system,
)
from posttrain.environments.questions import PLAIN, Layout, Raw
from posttrain.environments.rows import name_of
from posttrain.environments.strengths import sure, turned
from posttrain.environments.understood import Understood


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt, the better one first; who says so and with which votes is in the prompt's info."""

    prompt: Prompt
    chosen: str
    rejected: str
    preferred: float | None = None  # the probability that the first is preferred, at least 1/2; None: nobody says
    turned: bool = False  # the row called the other one chosen, and preferred it less


@dataclass(frozen=True)
class Reading:
    """What becomes of preferences that say little, or say it several times."""

    ties: bool = False  # keep pairs of which each answer is preferred as often (preferred = 1/2)
    unique: bool = False  # leave out rows that repeat an earlier one
    merge: bool = False  # rows about the same two answers are votes: one pair, preferred = their share
    pairs: str = "best_worst"  # of a list: its best and its worst answer, or "all" pairs of different scores
    aspect: str = ""  # of a list whose answers are rated by aspect: "helpfulness", or the "mean" of all

    def __post_init__(self) -> None:
        for name in ("ties", "unique", "merge"):
            if not isinstance(getattr(self, name), bool):
                raise UserError(f"{name} is {getattr(self, name)!r}; it is True or False")
        if self.pairs not in ("best_worst", "all"):
            raise UserError(
                f"pairs is {self.pairs!r}; of a list 'best_worst' makes one pair, 'all' one of every two answers"
            )


AS_THEY_ARE = Reading()


@dataclass(frozen=True)
class PreferenceData:
    """Pairs by split; left_out counts rows that were not taken, by reason."""

    name: str
    splits: dict[str, tuple[Pair, ...]]
    seed: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    understood: Understood = field(default_factory=Understood, compare=False)

    def size(self, split: str = "train") -> int:
        """How many pairs a split has."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        return len(self.splits.get(split, ()))

    def pair(self, index: int, split: str = "train") -> Pair:
        """Pair number `index`: every pass over a split is in another order, a function of (seed, pass)."""
        n = self.size(split)
        if not n:
            raise UserError(f"{self.name} has no {split} pairs")
        return self.splits[split][order(self.name, self.seed, split, index // n, n)[index % n]]

    def pairs(self, split: str = "train") -> tuple[Pair, ...]:
        """All pairs of a split, in the order of the file."""
        return self.splits[split] if self.size(split) else ()


def preferences(
    source: Any, test: Any = None, layout: Layout = PLAIN, seed: int = 0, skip_bad: bool = False, name: str = "",
    how: Reading = AS_THEY_ARE,
) -> PreferenceData:  # fmt: skip
    """Pairs of a file, a folder, an iterable of dicts or a dict of those by split.

    chosen and rejected are texts, messages, or whole dialogues (then no prompt column is needed). A pair of two equal
    answers says nothing, so it is left out and counted, and so is one of which each answer is preferred as often.
    """
    name = name or name_of(source)
    layout = replace(layout, usual=PREFERENCES["pairs"])
    read, loads, understood = gathered(source, test, layout, skip_bad, name, pair_builder)
    gone = {"bad rows": sum(x.bad for x in loads)}
    read = without(read, gone, "pairs of two equal answers", lambda p: p.chosen == p.rejected)
    if not any(read.values()):
        raise UserError(f"{name}: in every pair both answers are the same")
    read = {split: voted(some) for split, some in read.items()} if how.merge else read
    if not how.ties:
        read = without(read, gone, "ties, of which each answer is preferred as often", lambda p: p.preferred == 0.5)
    if how.unique:
        read = {split: once(some, row_key, gone) for split, some in read.items()}
    if not any(read.values()):
        raise UserError(f"{name}: every pair is a tie, so nothing says which answer is better")
    splits, gone["training rows that are in the test set"] = split_up(read)
    told = understood.noting(*doubts([p for some in splits.values() for p in some]))
    return PreferenceData(name, {k: tuple(v) for k, v in splits.items()}, seed, gone, told)


def gathered(
    source: Any, test: Any, layout: Layout, skip_bad: bool, name: str, build: Callable[..., Any]
) -> tuple[dict[str, list[Any]], list[Loaded], Understood]:
    """The items of each split with their ids, what was loaded, and what was understood of it."""
    sources = find_splits(source, test)
    read, loads = {}, []
    for split, one in sources.items():
        loads.append(load(one, layout, skip_bad, build))
        read[split] = [numbered(x, name, split if len(sources) > 1 else "", i) for i, x in enumerate(loads[-1].rows)]
    return read, loads, merged(loads, sources, test if test is not None else source)


def without(
    read: dict[str, list[Any]], gone: dict[str, int], reason: str, says_nothing: Callable[[Any], bool]
) -> dict[str, list[Any]]:
    """The items less those that say nothing, which are counted under the reason."""
    kept = {split: [x for x in some if not says_nothing(x)] for split, some in read.items()}
    gone[reason] = sum(map(len, read.values())) - sum(map(len, kept.values()))
    return kept


def pair_builder(columns: dict[str, str], seen: list[str], called: str, layout: Layout) -> Callable[[Raw], Pair]:
    """row -> Pair. ValueError says what is wrong with a row."""
    better, worse = (need(f, columns, seen, called) if seen else "" for f in ("chosen", "rejected"))
    asks = columns.get("question") or columns.get("messages", "")
    used = {columns.get(f) for f in PREFERENCES["pairs"] if f not in ("question", "messages")} | {asks}

    def build(row: Raw) -> Pair:
        for column in (better, worse, *filter(None, (asks,))):
            if row.get(column) is None:
                raise ValueError(f"no {column!r} in it")
        before, chosen, rejected = _answers(row[better], row[worse], bool(asks))
        if asks:
            before = under(_asked(conversation_of(row[asks]), before), cell(row, columns, "input"))
        if not chosen and not rejected:
            raise ValueError("both answers are empty")
        content = with_system(before, cell(row, columns, "system"))
        preferred, known = sure(row, columns)
        info = {k: v for k, v in row.items() if k not in used}
        if preferred is not None and preferred < 0.5:
            return Pair(Prompt("", content, None, info | turned(known)), rejected, chosen, 1 - preferred, True)
        return Pair(Prompt("", content, None, info | known), chosen, rejected, preferred)

    return build


def _answers(better: Any, worse: Any, prompted: bool) -> tuple[tuple[Message, ...], str, str]:
    """(the dialogue that both answer, chosen, rejected); beside a prompt column the first is empty where the answers are texts."""
    (before, chosen), (before_worse, rejected) = _side(better, prompted), _side(worse, prompted)
    if before != before_worse and not (prompted and (not before or not before_worse)):
        where = "" if prompted else ", and there is no prompt column"
        raise ValueError(f"chosen and rejected do not answer the same dialogue{where}")
    if before or before_worse or prompted:
        return before or before_worse, chosen, rejected
    start = _shared(chosen, rejected)  # two texts: their prompt is the beginning that they share
    if not start.strip():
        raise ValueError("chosen and rejected do not begin alike, and there is no prompt column")
    return messages(start.strip()), chosen[len(start) :].strip(), rejected[len(start) :].strip()


def _asked(asked: tuple[Message, ...], before: tuple[Message, ...]) -> tuple[Message, ...]:
    """What is answered, where a prompt column and the answers' own dialogue both say it: the longer one, with the system message of
    either. ValueError where they are not one conversation."""
    if not before:
        return asked
    a, b = _spoken(asked), _spoken(before)
    if a[-len(b) :] != b and b[: len(a)] != a:
        raise ValueError(
            "the prompt column and the dialogue before chosen and rejected are not the same; where the prompt column is something "
            "else, write FILE(question='')"
        )
    longer = before if len(b) > len(a) else asked
    system = [m for m in (*asked[:1], *before[:1]) if m["role"] == "system"]
    return longer if not system or longer[0]["role"] == "system" else (system[0], *longer)


def _spoken(some: tuple[Message, ...]) -> list[tuple[str, str]]:
    """Who says what, without a system message."""
    return [(m["role"], str(m["content"]).strip()) for m in some if m["role"] != "system"]


def _shared(a: str, b: str) -> str:
    """The beginning that two texts have in common, up to the end of a word."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[: max(a[:n].rfind(" "), a[:n].rfind("\n")) + 1]


def _side(value: Any, prompted: bool) -> tuple[tuple[Message, ...], str]:
    """An answer; beside a prompt column a text is the answer itself, even one that begins with `Human:`."""
    return ((), checked_text(value).strip()) if prompted and isinstance(value, str) else reply(value)
