"""Questions from a file: `data("train.jsonl", test="test.jsonl")` is an Environment like any other.

Splits come from two files, from a folder with train.* and test.*, from a dict of data sets, or, with one file only,
from the hash of each question (one in ten is a test question). No question is ever in both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.answers import golds, is_number, offered
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part, find
from posttrain.core.selfcheck import check_ready
from posttrain.core.types import Prompt
from posttrain.environments.base import SPLITS
from posttrain.environments.fields import resolve
from posttrain.environments.questions import PLAIN, Layout, Raw, question_builder
from posttrain.environments.rows import FORMATS, Bad, Files, check_room, name_of, read_rows
from posttrain.environments.understood import Understood, used

THINK = "\nThink between <think> and </think> first, then answer."
_PIECE = re.compile(r"-\d+-of-\d+$")
_PEEK = 100  # rows looked at to learn the columns
HELD_OUT = ("test", "validation", "valid", "val", "dev", "eval")  # the first that is there is held out
_SHOWN = (
    "question",
    "messages",
    "input",
    "choices",
    "system",
    "prefill",
    "answer",
    "demonstration",
)  # fields that a prompt and its grade are made of
BY_HASH = "one question in ten, by its hash, is held out"


@dataclass(frozen=True)
class DataEnvironment(Environment):
    """Prompts of each split and the reward that grades them; left_out counts rows that were not taken, by reason."""

    name: str
    splits: dict[str, tuple[Prompt, ...]]
    reward: Part
    layout: Layout = PLAIN
    seed: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    understood: Understood = field(default_factory=Understood, compare=False)

    @property
    def graded(self) -> bool:
        """Whether it can grade: there are gold answers, or a reward was chosen for it that may need none."""
        return bool(self.layout.reward) or any(p.answer is not None for some in self.splits.values() for p in some)

    def size(self, split: str = "train") -> int:
        """How many prompts a split has."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        return len(self.splits.get(split, ()))

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Prompt number `index`: every pass over a split is in another order, a function of (seed, pass)."""
        n = self.size(split)
        if not n:
            held = "; name a file of them: --task \"FILE(test='OTHER')\"" if split == "test" else ""
            raise UserError(f"{self.name} has no {split} questions; it has {_sizes(self.splits)}{held}")
        return self.splits[split][order(self.name, self.seed, split, index // n, n)[index % n]]

    def grade(self, prompt: Prompt, text: str) -> float:
        """What the reward says, within [0, 1]."""
        return min(max(float(self.reward(prompt, text)), 0.0), 1.0)

    def validate(self, n: int) -> list[str]:
        """Test the grader: gold answers must score 1, spoiled ones less. Empty when all is well."""
        problems = []
        prompts = [p for split in SPLITS for p in islice(self.splits.get(split, ()), n) if p.answer is not None]
        for prompt in prompts[:n]:
            gold = self.layout.write(str(golds(prompt)[0]))
            spoiled = self.layout.spoil(draws.python("spoil", prompt.id), prompt)
            if (got := self.grade(prompt, gold)) != 1.0:
                problems.append(f"{prompt.id}: gold answer {gold!r:.80} scores {got}")
            if (got := self.grade(prompt, spoiled)) >= 1.0:
                problems.append(f"{prompt.id}: wrong answer {spoiled!r:.80} scores {got}, gold is {gold!r:.80}")
        return problems


@lru_cache(maxsize=8)
def order(name: str, seed: int, split: str, epoch: int, n: int) -> list[int]:
    """The order of pass number `epoch` over the n items of a split."""
    return draws.python(name, seed, split, epoch).sample(range(n), n)


def data(
    source: Any, test: Any = None, layout: Layout = PLAIN, seed: int = 0, skip_bad: bool = False, name: str = ""
) -> DataEnvironment:
    """An Environment of the questions in a file, a folder, an iterable of dicts or a dict of those by split."""
    name = name or name_of(source)
    sources = find_splits(source, test)
    read, loads = {}, []
    for split, one in sources.items():
        loads.append(load(one, layout, skip_bad))
        read[split] = [numbered(p, name, split if len(sources) > 1 else "", i) for i, p in enumerate(loads[-1].rows)]
    splits, dropped = split_up(read)
    part = layout.reward or guess_reward(splits)
    reward = find(part, "reward") if isinstance(part, str) else part
    check_ready(reward)
    left_out = {"bad rows": sum(x.bad for x in loads), "training rows that are in the test set": dropped}
    told = merged(loads, sources, test if test is not None else source)
    if isinstance(part, str) and not layout.reward:
        told = told.noting(ungraded(splits, part))
    return DataEnvironment(name, {k: tuple(v) for k, v in splits.items()}, reward, layout, seed, left_out, told)


def find_splits(source: Any, test: Any) -> dict[str, Any]:
    """split -> source. A folder is searched for train.* and test.*; a dict of data sets names its own splits."""
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        files = sorted(f for f in Path(source).iterdir() if f.name.removesuffix(".gz").endswith(FORMATS))
        source = by_split(files)
        if not {"train", *HELD_OUT} & set(source):
            there = ", ".join(f.name for f in files) or "no data file at all"
            raise UserError(f"expected a train.* or test.* file in the folder, found {there}")
    if isinstance(source, Mapping):
        found = {"train": source["train"]} if "train" in source else {}
        held = next((s for s in HELD_OUT if s in source), None)
        found |= {"test": source[held]} if held and (held == "test" or found) else {}
        if not found:
            raise UserError(f"expected the splits train and test, got {', '.join(map(str, source)) or 'none'}")
        return found if test is None else {**found, "test": test}
    return {"train": source} if test is None else {"train": source, "test": test}


def by_split(files: list[Path]) -> dict[str, Any]:
    """split -> its file, or its files where it comes in pieces (train-00000-of-00003.parquet)."""
    out: dict[str, list[Path]] = {}
    for file in files:
        stem = file.name.split(".")[0]
        out.setdefault(_PIECE.sub("", stem), []).append(file)
    for split in ("train", *HELD_OUT):
        whole = [f.name for f in out.get(split, ()) if f.name.split(".")[0] == split]
        if whole and len(out[split]) > 1:
            there = ", ".join(f.name for f in out[split])
            raise UserError(
                f"the folder has several files for {split}: {there}; name the one to read, or move the others"
            )
    return {split: some[0] if some[0].name.split(".")[0] == split else Files(some) for split, some in out.items()}


@dataclass(frozen=True)
class Loaded:
    """The rows of one source, made into what a builder makes of them; how many could not be, and what was understood."""

    rows: list[Any]
    bad: int
    understood: Understood


def merged(loads: list[Loaded], sources: Mapping[str, Any], given: Any) -> Understood:
    """What was understood of all splits together."""
    first = next((x.understood.bad for x in loads if x.understood.bad), "")
    how = BY_HASH if set(sources) == {"train"} else ""
    if isinstance(given, Mapping) and "test" in sources and "test" not in given:
        how = f"the split {next(s for s in HELD_OUT if s in given)} is held out"
    return replace(loads[0].understood, bad=first, split=how)


def load(source: Any, layout: Layout, skip_bad: bool, build: Callable[..., Any] | None = None) -> Loaded:
    """Every row of a source as a prompt, and how many were skipped; without skip_bad a bad row is an error."""
    shape = layout.shape
    check_room(source)
    shaped = ((w, _shaped(shape, r) if shape and isinstance(r, dict) else r) for w, r in read_rows(source))
    rows = [(where, row) for where, row in shaped if row is not None]
    called = str(source) if isinstance(source, (str, Path)) else name_of(source)
    if not rows:
        raise UserError(f"{called} has no rows")
    make, understood = maker([row for _, row in rows[:_PEEK]], called, layout, build)
    made, bad = [], []
    for where, row in rows:
        item = row if isinstance(row, Bad) else attempt(make, row)
        (bad.append((where, item)) if isinstance(item, Bad) else made.append(item))
    first = f"{bad[0][0]}: {bad[0][1].reason}" if bad else ""
    if bad and not (skip_bad and made):
        hint = f"; {called}(skip_bad=True) leaves them out" if made and not skip_bad else ""
        raise UserError(f"{called}: {len(bad)} of {len(rows)} rows are bad; the first, {first}{hint}")
    return Loaded(made, len(bad), replace(understood, bad=first))


def maker(
    peeked: list[Any], called: str, layout: Layout, build: Callable[..., Any] | None = None
) -> tuple[Callable[[Raw], Any], Understood]:
    """row -> item, by the columns of the first rows; and which columns those are."""
    seen = list(dict.fromkeys(k for row in peeked if isinstance(row, dict) for k in row))
    columns = resolve(seen, layout.fields, called, layout.usual) if seen else {}
    make = (build or question_builder)(columns, seen, called, layout)
    return make, used(columns, seen, tuple(layout.usual) if build else _SHOWN)


def _shaped(shape: Callable[[Raw], Raw | None], row: Raw) -> Raw | Bad | None:
    try:
        return shape(row)
    except KeyError as error:
        return Bad(f"no {error.args[0]!r} in it")
    except (TypeError, ValueError) as error:
        return Bad(str(error))


def attempt(make: Callable[[Raw], Any], row: Raw) -> Any:
    try:
        return make(row)
    except ValueError as error:
        return Bad(str(error))


def numbered(item: Any, name: str, split: str, index: int) -> Any:
    """The item with a prompt id: its place in its file."""
    label = "-".join(filter(None, (name, split, str(index))))
    return replace(item, prompt=replace(item.prompt, id=label)) if hasattr(item, "prompt") else replace(item, id=label)


def split_up(read: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], int]:
    """Train and test without a question in common, and how many training rows that cost."""
    if set(read) == {"train"}:
        keyed = [(draws.key(question_of(x)), x) for x in read["train"]]
        least = min(k for k, _ in keyed)  # a small file still has one test question
        test = [x for k, x in keyed if k % 10 == 0]
        if not test or len(test) == len(keyed):  # one alone is trained on
            test = [x for k, x in keyed if k == least < max(k for k, _ in keyed)]
        read = {"train": read["train"], "test": test}
        asked = {question_of(x) for x in test}
        return {"train": [x for x in read["train"] if question_of(x) not in asked], "test": test}, 0
    asked = {question_of(x) for x in read.get("test", ())}
    train = [x for x in read.get("train", ()) if question_of(x) not in asked]
    return {**read, "train": train}, len(read.get("train", ())) - len(train)


def question_of(item: Any) -> str:
    """What is asked, as one text: two prompts with the same are the same question."""
    prompt = getattr(item, "prompt", item)
    return repr([(m["role"], m["content"]) for m in prompt.content])


def guess_reward(splits: Mapping[str, list[Prompt]]) -> str:
    """choice for questions with choices (in a column, or written out in the question), numeric for gold numbers, math when
    most golds are LaTeX or numbers and at least one in twenty is LaTeX (MATH), else exact_match."""
    some = [p for prompts in splits.values() for p in prompts[:_PEEK]]
    texts = [str(golds(p)[0]) for p in some if p.answer is not None]
    if some and all(_lettered(p) for p in some):
        return "choice"
    if texts and all(is_number(t) for t in texts):
        return "numeric"
    latex, numbers = sum("\\" in t for t in texts), sum(is_number(t) for t in texts)
    return "math" if latex * 20 >= len(texts) > 0 and (latex + numbers) * 2 > len(texts) else "exact_match"


def ungraded(splits: Mapping[str, Sequence[Prompt]], by: str) -> str:
    """A sentence where a grader that was chosen from the gold answers does not suit all of them."""
    some = [p for prompts in splits.values() for p in prompts if p.answer is not None]
    odd = [p for p in some if by == "numeric" and not any(is_number(str(g)) for g in golds(p))]
    if odd:
        first = f"the first, {odd[0].answer!r:.60}"
        return (
            f"note: {len(odd):,} of {len(some):,} gold answers are no numbers ({first}), and no answer is right there"
        )
    lettered = sum(map(_lettered, some)) if by == "exact_match" else 0
    if lettered:
        told = f"{lettered:,} of {len(some):,} rows have choices, so letters are not looked for"
        return f"note: only {told}: an answer is right where all of it is the gold answer"
    return ""


def _lettered(prompt: Prompt) -> bool:
    return isinstance(prompt.info.get("choices"), list) or _inline(prompt)


def _inline(prompt: Prompt) -> bool:
    """The question writes out its own choices, and the gold answer is the letter of one: `(B)`."""
    letter = str(prompt.answer).strip().strip("().")
    return len(letter) == 1 and letter in offered(prompt.last)


def _sizes(splits: Mapping[str, Any]) -> str:
    return ", ".join(f"{len(v)} for {k}" for k, v in splits.items()) or "none at all"
