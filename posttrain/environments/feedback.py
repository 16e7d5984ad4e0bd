"""Preferences of whatever kind a file holds, as the kind that a method learns from: pairs, ranked lists, good and bad answers.

What a prompt carries in `info`:
    pairs     chosen, rejected; preferred (P(chosen is preferred)), annotator, votes, score_chosen, score_rejected where they are known
    lists     ranked: [{"text": ..., "score": ...}, ...], best first
    labels    response, label (True or False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments import good_bad, rankings
from posttrain.environments.agreement import once
from posttrain.environments.conversions import KINDS, converted
from posttrain.environments.data import find_splits, split_up
from posttrain.environments.fields import PREFERENCE_FIELDS, PREFERENCES, resolve
from posttrain.environments.good_bad import Judged, label_builder
from posttrain.environments.language.listed import Listed, as_prompt
from posttrain.environments.preferences import AS_THEY_ARE, Pair, Reading, gathered, pair_builder, preferences, without
from posttrain.environments.questions import PLAIN, Layout
from posttrain.environments.rankings import Ranked, is_texts, list_builder
from posttrain.environments.rows import name_of, read_rows
from posttrain.environments.strengths import good

_PEEK = 20  # rows that are looked at to learn the kind


@dataclass(frozen=True)
class PreferenceFiles:
    """Where preferences are read from, and how."""

    source: Any
    test: Any = None
    layout: Layout = PLAIN
    seed: int = 0
    skip_bad: bool = False
    name: str = ""
    how: Reading = AS_THEY_ARE


def feedback(files: PreferenceFiles, want: str) -> Listed:
    """The preferences of a file, a folder or rows of Python as an Environment of the wanted kind; a conversion is told."""
    files = replace(files, source=again(files.source), test=again(files.test), name=files.name or name_of(files.source))
    kind = kind_of_source(files.source, files.test, files.layout.fields) or want
    env = {"pairs": _pairs, "lists": _lists, "labels": _labels}[kind](files)
    return of_kind(env, kind, want, files.how)


def of_kind(env: Listed, kind: str, want: str, how: Reading = AS_THEY_ARE) -> Listed:
    """An Environment with preferences of one kind as one with those of another."""
    every = how.pairs == "all"
    train, said = converted(env.train, kind, want, every)
    test, _ = converted(env.test, kind, want, every)
    if env.train and not train and kind == "labels":
        raise UserError(
            f"{env.name} has answers that are good or bad each by itself, and no question has one of both, so nothing says which of two is "
            f"better; learn from them with a method of labels (kto), or give rows with {KINDS[want]}"
        )
    if not train:
        raise UserError(f"{env.name} has no training {want}; it has {len(test):,} for test")
    return replace(env, train=tuple(train), test=tuple(test), understood=env.understood.noting(said))


def again(source: Any) -> Any:
    """A source that can be read twice."""
    if isinstance(source, Mapping):
        return {split: again(one) for split, one in source.items()}
    return list(source) if isinstance(source, Iterator) else source


def kind_of_source(source: Any, test: Any, given: Mapping[str, str]) -> str:
    """The kind of preferences in the first rows of a source; empty where they are none that is known."""
    first = next(iter(find_splits(source, test).values()))
    return kind_of([row for _, row in islice(read_rows(first), _PEEK) if isinstance(row, dict)], given)


def kind_of(rows: Sequence[Mapping[str, Any]], given: Mapping[str, str]) -> str:
    """pairs, lists or labels by the columns of some rows, those that were named first."""
    seen = list(dict.fromkeys(k for row in rows for k in row))
    named = {field: column for field, column in given.items() if field in PREFERENCE_FIELDS and column in ("", *seen)}
    columns = resolve(seen, named, "", PREFERENCE_FIELDS) if seen else {}
    first: Mapping[str, Any] = rows[0] if rows else {}
    if "chosen" in columns and "rejected" in columns and "responses" not in given:
        return "lists" if all(is_texts(first.get(columns[side])) for side in ("chosen", "rejected")) else "pairs"
    held = first.get(columns.get("responses", ""))
    rated = isinstance(held, (list, tuple)) and any(isinstance(x, Mapping) and _scored(x) for x in held)
    if isinstance(held, (list, tuple, Mapping)) and (rated or {"scores", "ranks", "ranking"} & set(columns)):
        return "lists"
    says = columns.get("label", "")
    if says and ("messages" in columns or _answers(rows, columns)) and all(good(r.get(says)) is not None for r in rows):
        return "labels"
    return "labels" if "label" in given else ""


def _scored(answer: Mapping[str, Any]) -> bool:
    return bool(
        {"score", "rating", "overall_score", "reward", "fine-grained_score", "rank", "annotations"} & set(answer)
    )


def _answers(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> bool:
    """Whether every row has an answer that is a text or messages, to a question."""
    if "response" not in columns or "question" not in columns:
        return False
    return all(isinstance(r.get(columns["response"]), (str, list, dict)) for r in rows)


def _pairs(files: PreferenceFiles) -> Listed:
    found = preferences(files.source, files.test, files.layout, files.seed, files.skip_bad, files.name, files.how)
    train, test = (tuple(map(as_prompt, found.pairs(split))) for split in ("train", "test"))
    return Listed(files.name, train, test, found.left_out, found.understood)


def _lists(files: PreferenceFiles) -> Listed:
    def checked(read: dict[str, list[Any]], gone: dict[str, int]) -> dict[str, list[Any]]:
        every = [x for some in read.values() for x in some]
        rankings.check_aspect(files.how.aspect, every)
        gone |= rankings.counted(every)
        for reason in dict.fromkeys(x.says_nothing for x in every if x.says_nothing):
            read = without(read, gone, reason, partial(_says, reason))
        return read

    return _made(files, "lists", list_builder(files.how.aspect), checked, rankings.doubts)


def _says(reason: str, some: Ranked) -> bool:
    return some.says_nothing == reason


def _labels(files: PreferenceFiles) -> Listed:
    def checked(read: dict[str, list[Any]], gone: dict[str, int]) -> dict[str, list[Any]]:
        return {split: once(some, good_bad.row_key, gone) for split, some in read.items()} if files.how.unique else read

    return _made(files, "labels", label_builder, checked, good_bad.doubts)


Checked = Callable[[dict[str, list[Any]], dict[str, int]], dict[str, list[Any]]]


def _made(
    files: PreferenceFiles, kind: str, build: Any, checked: Checked, doubts: Callable[[list[Any]], list[str]]
) -> Listed:
    """The items of a file by split, checked, as prompts; what was left out and what is odd is told."""
    layout = replace(files.layout, usual=PREFERENCES[kind])
    read, loads, understood = gathered(files.source, files.test, layout, files.skip_bad, files.name, build)
    gone = {"bad rows": sum(x.bad for x in loads)}
    read = checked(read, gone)
    if not any(read.values()):
        why = next((reason for reason, n in gone.items() if n and reason != "bad rows"), "no rows")
        raise UserError(f"{files.name}: nothing is left to learn from; the file has {why}")
    splits, gone["training rows that are in the test set"] = split_up(read)
    told = understood.noting(*doubts([x for some in splits.values() for x in some]))
    train, test = (tuple(x.as_prompt() for x in splits.get(split, ())) for split in ("train", "test"))
    return Listed(files.name, train, test, gone, told)


BUILDERS: dict[str, Any] = {"pairs": pair_builder, "labels": label_builder}


def builder_of(kind: str, how: Reading) -> Any:
    """What makes a row of this kind an item."""
    return list_builder(how.aspect) if kind == "lists" else BUILDERS[kind]


def prompts_of(item: Pair | Ranked | Judged, kind: str, want: str, how: Reading) -> list[Prompt]:
    """The prompts of one row; none where it says nothing."""
    if isinstance(item, Pair):
        tie = item.chosen == item.rejected or (item.preferred == 0.5 and not how.ties)
        return [] if tie else converted([as_prompt(item)], kind, want, how.pairs == "all")[0]
    if isinstance(item, Ranked) and item.says_nothing:
        return []
    return converted([item.as_prompt()], kind, want, how.pairs == "all")[0]


def refuse_stream(kind: str, want: str, how: Reading) -> None:
    """Rows from the disk are one prompt each."""
    if kind != want and ("labels" in (kind, want) or how.pairs == "all"):
        raise UserError(
            f"--stream makes one prompt of each row, which {kind} that become {want} are not; leave --stream away, or write a file of {want}: {KINDS[want]}"
        )
    if how.merge or how.unique:
        raise UserError(
            "--stream does not see which rows belong together, so it takes no merge and no unique; leave --stream away"
        )
