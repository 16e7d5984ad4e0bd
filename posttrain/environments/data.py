"""Questions from a file: `data("train.jsonl", test="test.jsonl")` is an Environment like any other.

Splits come from two files, from a folder with train.* and test.*, from a dict of data sets, or, with one file only,
from the hash of each question (one in ten is a test question). No question is ever in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.answers import boxed, golds, hashed, is_number
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part, find
from posttrain.core.selfcheck import check_ready
from posttrain.core.types import Prompt
from posttrain.environments.base import SPLITS, corrupt
from posttrain.environments.fields import messages, need, reply, resolve
from posttrain.environments.rows import FORMATS, Bad, name_of, read_rows

THINK = "\nThink between <think> and </think> first, then answer."
_PEEK = 100  # rows looked at to learn the columns
_LETTERS = "ABCDEFGHIJ"
Raw = dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """How rows become prompts, and what grades the answers."""

    fields: Mapping[str, str] = field(default_factory=dict)  # field -> column, where the usual names do not fit
    reward: str | Part = ""  # "": chosen from the gold answers
    suffix: str = ""  # what is asked for, written after every question
    shape: Callable[[Raw], Raw | None] | None = None  # a row as the loader should see it; None leaves it out
    write: Callable[[str], str] = str  # a good text for a gold answer, for validate
    spoil: Callable[[Random, Prompt], str] = corrupt  # a wrong text, for validate


PLAIN = Layout()


@dataclass(frozen=True)
class DataEnvironment(Environment):
    """Prompts of each split and the reward that grades them; left_out counts rows that were not taken, by reason."""

    name: str
    splits: dict[str, tuple[Prompt, ...]]
    reward: Part
    layout: Layout = PLAIN
    seed: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)

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
            raise UserError(f"{self.name} has no {split} questions; it has {_sizes(self.splits)}")
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
    read, bad = {}, 0
    for split, one in sources.items():
        rows, skipped = load(one, layout, skip_bad)
        read[split] = [numbered(p, name, split if len(sources) > 1 else "", i) for i, p in enumerate(rows)]
        bad += skipped
    splits, dropped = split_up(read)
    part = layout.reward or guess_reward(splits)
    reward = find(part, "reward") if isinstance(part, str) else part
    check_ready(reward)
    left_out = {"bad rows": bad, "training rows that are in the test set": dropped}
    return DataEnvironment(name, {k: tuple(v) for k, v in splits.items()}, reward, layout, seed, left_out)


def find_splits(source: Any, test: Any) -> dict[str, Any]:
    """split -> source. A folder is searched for train.* and test.*; a dict of data sets names its own splits."""
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        files = sorted(f for f in Path(source).iterdir() if any(e in f.name for e in FORMATS))
        source = {s: f for s in SPLITS for f in files if f.name.split(".")[0] == s}
        if not source:
            there = ", ".join(f.name for f in files) or "no data file at all"
            raise UserError(f"expected a train.* or test.* file in the folder, found {there}")
    if isinstance(source, Mapping):
        found = {s: source[s] for s in SPLITS if s in source}
        if not found:
            raise UserError(f"expected the splits train and test, got {', '.join(map(str, source)) or 'none'}")
        return found if test is None else {**found, "test": test}
    return {"train": source} if test is None else {"train": source, "test": test}


def load(source: Any, layout: Layout, skip_bad: bool, build: Callable[..., Any] | None = None) -> tuple[list[Any], int]:
    """Every row of a source as a prompt, and how many were skipped; without skip_bad a bad row is an error."""
    shape = layout.shape
    shaped = ((w, _shaped(shape, r) if shape and isinstance(r, dict) else r) for w, r in read_rows(source))
    rows = [(where, row) for where, row in shaped if row is not None]
    called = str(source) if isinstance(source, (str, Path)) else name_of(source)
    if not rows:
        raise UserError(f"{called} has no rows")
    seen = list(dict.fromkeys(k for _, row in rows[:_PEEK] if isinstance(row, dict) for k in row))
    make = (build or question_builder)(resolve(seen, layout.fields, called) if seen else {}, seen, called, layout)
    made, bad = [], []
    for where, row in rows:
        item = row if isinstance(row, Bad) else _attempt(make, row)
        (bad.append((where, item)) if isinstance(item, Bad) else made.append(item))
    if bad and not (skip_bad and made):
        where, first = bad[0]
        hint = "" if skip_bad else "; skip_bad=True leaves them out"
        raise UserError(f"{called}: {len(bad)} of {len(rows)} rows are bad; the first, {where}: {first.reason}{hint}")
    return made, len(bad)


def _shaped(shape: Callable[[Raw], Raw | None], row: Raw) -> Raw | Bad | None:
    try:
        return shape(row)
    except KeyError as error:
        return Bad(f"no {error.args[0]!r} in it")
    except (TypeError, ValueError) as error:
        return Bad(str(error))


def _attempt(make: Callable[[Raw], Any], row: Raw) -> Any:
    try:
        return make(row)
    except ValueError as error:
        return Bad(str(error))


def question_builder(columns: dict[str, str], seen: list[str], called: str, layout: Layout) -> Callable[[Raw], Prompt]:
    """row -> Prompt. ValueError says what is wrong with a row."""
    asks = columns.get("messages", "") if "question" not in columns else columns["question"]
    if seen and not asks:
        need("question", columns, seen, called)

    def build(row: Raw) -> Prompt:
        if row.get(asks) is None:
            raise ValueError(f"no {asks!r} in it")
        content, answer = messages(row[asks]), _answer(row, columns)
        if content[-1]["role"] == "assistant":
            before, said = reply(list(content))
            content, answer = before, said if answer is None else answer
        choices = _choices(_cell(row, columns, "choices"))
        last = {**content[-1], "content": _asked(content[-1]["content"], choices, layout.suffix)}
        system = _cell(row, columns, "system")
        first = ({"role": "system", "content": str(system)},) if system else ()
        used = {columns.get(f) for f in ("question", "messages", "answer", "system")}
        info = {k: v for k, v in row.items() if k not in used} | ({"choices": choices} if choices else {})
        return Prompt("", (*first, *content[:-1], last), answer, info)

    return build


def _cell(row: Raw, columns: Mapping[str, str], field: str) -> Any:
    return row.get(columns[field]) if field in columns else None


def _answer(row: Raw, columns: Mapping[str, str]) -> Any:
    """The gold answer: a solution that ends in #### or in a box is cut down to what stands there."""
    if "answer" not in columns:
        return None
    answer = row.get(columns["answer"])
    if answer is None or (isinstance(answer, (str, list)) and not answer):
        raise ValueError(f"no {columns['answer']!r} in it")
    if not isinstance(answer, str):
        return answer
    short = hashed(answer)
    short = boxed(answer) if short is None else short
    return answer.strip() if short is None else short


def _choices(value: Any) -> list[str]:
    listed = value.get("text") if isinstance(value, Mapping) else value
    if listed is None:
        return []
    if not isinstance(listed, (list, tuple)) or not 2 <= len(listed) <= len(_LETTERS):
        raise ValueError(f"choices are a list of 2 to {len(_LETTERS)} texts, got {value!r:.80}")
    return [str(c) for c in listed]


def _asked(content: Any, choices: list[str], suffix: str) -> Any:
    lines = "".join(f"\n{letter}) {c}" for letter, c in zip(_LETTERS, choices, strict=False))
    added = lines + suffix
    if isinstance(content, str):
        return content + added
    return [*content, {"type": "text", "text": added}] if added else content


def numbered(item: Any, name: str, split: str, index: int) -> Any:
    """The item with a prompt id: its place in its file."""
    label = "-".join(filter(None, (name, split, str(index))))
    return replace(item, prompt=replace(item.prompt, id=label)) if hasattr(item, "prompt") else replace(item, id=label)


def split_up(read: dict[str, list[Any]]) -> tuple[dict[str, list[Any]], int]:
    """Train and test without a question in common, and how many training rows that cost."""
    if set(read) == {"train"}:
        keyed = [(draws.key(question_of(x)), x) for x in read["train"]]
        least = min(k for k, _ in keyed)  # a small file still has one test question
        test = [x for k, x in keyed if k % 10 == 0] or [x for k, x in keyed if k == least and len(keyed) > 1]
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
    """choice for questions with choices, numeric for gold numbers, math when most golds are LaTeX, else exact_match."""
    some = [p for prompts in splits.values() for p in prompts[:_PEEK]]
    texts = [str(golds(p)[0]) for p in some if p.answer is not None]
    if some and all("choices" in p.info for p in some):
        return "choice"
    if texts and all(is_number(t) for t in texts):
        return "numeric"
    return "math" if sum("\\" in t for t in texts) * 2 > len(texts) else "exact_match"


def _sizes(splits: Mapping[str, Any]) -> str:
    return ", ".join(f"{len(v)} for {k}" for k, v in splits.items()) or "none at all"
