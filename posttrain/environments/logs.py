"""Answers that were given before, with what they earned: `posttrain run topr --rollout logged --task log.jsonl`.

A row is a prompt and one answer: its text or token ids, and if known its reward and the log-probability of each token under
the policy that gave it. Rows with the same prompt are one group. A run's own folder is a log too: `--task runs/NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posttrain.core.codec import last_context, turn
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.core.types import Prompt
from posttrain.environments.data import (
    BY_HASH,
    DataEnvironment,
    find_splits,
    guess_reward,
    load,
    numbered,
    question_of,
    split_up,
)
from posttrain.environments.fields import messages, resolve
from posttrain.environments.questions import Layout, Raw
from posttrain.environments.rows import name_of
from posttrain.environments.understood import Understood

# what each field of a log is called, in the order they are tried; the answer itself comes last, it may be the gold one
LOG_NAMES: dict[str, tuple[str, ...]] = {
    "question": ("prompt", "question", "messages", "problem", "instruction", "query", "input"),
    "response": ("response", "completion", "generation", "text", "output", "answer"),
    "tokens": ("tokens", "token_ids", "response_ids", "completion_ids"),
    "logp": ("logp", "logprobs", "log_probs", "old_logp", "behaviour_logp"),
    "reward": ("reward", "score", "rewards"),
    "mask": ("mask",),
    "gold": ("gold", "ground_truth", "target", "answer"),
}
_RUN = "run.sqlite"
_WIDE = "SELECT prompt, text, reward, tokens, logp, mask FROM rollouts WHERE NOT failed"  # runs of version 0.1
_COMPACT = (
    "SELECT r.id, COALESCE(b.prompt, g.prompt) AS prompt, b.text, r.reward FROM rollouts r JOIN bodies b ON b.id = r.id LEFT JOIN "
    "groups g ON g.phase = r.phase AND g.step = r.step AND g.group_index = r.group_index WHERE NOT r.failed ORDER BY r.id"
)


@dataclass(frozen=True)
class Said:
    """One logged answer and what it answers."""

    prompt: Prompt
    answer: dict[str, Any]


@dataclass(frozen=True)
class LogData(DataEnvironment):
    """Prompts whose answers come with them (`info["answers"]`); graded where there are gold answers."""

    given: Mapping[str, int] = field(default_factory=dict)  # how many answers there are, and how many with each field

    @property
    def rewarded(self) -> bool:
        """Whether every answer says what it earned."""
        return self.given.get("reward", 0) == self.given.get("answers", -1)


def logs(source: Any, fields: Mapping[str, str] | None = None, reward: str = "", skip_bad: bool = False) -> LogData:
    """The log in a file, a run's folder, or an iterable of dicts."""
    name, rows = name_of(source), source
    if isinstance(source, (str, Path)) and (run := run_file(source)):
        name, rows = run.parent.name, run_rows(run)
    layout = Layout(fields={}, reward=reward)
    read, bad, told = {}, 0, Understood()
    for split, one in find_splits(rows, None).items():
        said = load(one, layout, skip_bad, lambda c, seen, called, _: log_builder(seen, called, fields or {}))
        read[split], bad = [numbered(p, name, split, i) for i, p in enumerate(grouped(said.rows))], bad + said.bad
        told = Understood(split=BY_HASH if split == "train" else "", bad=said.understood.bad)
    splits, dropped = split_up(read)
    if not splits.get("train"):
        raise UserError(f"{name} has no prompt left to train on; a log needs two different prompts, one is held out")
    answers = [a for some in splits.values() for p in some for a in p.info["answers"]]
    given = {"answers": len(answers)} | {k: sum(a.get(k) is not None for a in answers) for k in ("reward", "logp")}
    part = find(reward or guess_reward(splits), "reward")
    left_out = {"bad rows": bad, "training rows that are in the test set": dropped}
    made = {k: tuple(v) for k, v in splits.items()}
    return LogData(name, made, part, layout, 0, left_out, told, given)


def grouped(said: list[Said]) -> list[Prompt]:
    """One prompt for all answers to the same question, in the order they first came."""
    found: dict[str, Prompt] = {}
    for s in said:
        p = found.setdefault(question_of(s.prompt), replace(s.prompt, info={**s.prompt.info, "answers": []}))
        p.info["answers"].append(s.answer)
    return list(found.values())


def log_builder(seen: list[str], called: str, fields: Mapping[str, str]) -> Callable[[Raw], Said]:
    """row -> Said. ValueError says what is wrong with a row."""
    columns = resolve(seen, fields, called, LOG_NAMES) if seen else {}
    asks, says, ids = (columns.get(k, "") for k in ("question", "response", "tokens"))
    if columns.get("gold") == says:
        columns.pop("gold", None)
    for what, column in (("question", asks), ("response", says or ids)):
        if seen and not column:
            raise UserError(
                f"{called} has no {what} column; it has {', '.join(map(repr, seen))}; write {called}({what}='COLUMN')"
            )

    def build(row: Raw) -> Said:
        if row.get(asks) is None:
            raise ValueError(f"no {asks!r} in it")
        answer = {
            "text": row.get(says),
            "tokens": listed(row, ids, int),
            "logp": listed(row, columns.get("logp"), float),
        }
        answer |= {"mask": listed(row, columns.get("mask"), bool), "reward": earned(row, columns.get("reward"))}
        if answer["tokens"] is None and not isinstance(answer["text"], str):
            raise ValueError(f"no answer in it: {says or ids!r} is {row.get(says or ids)!r:.60}")
        gold = row.get(columns["gold"]) if "gold" in columns else None
        content = tuple(messages(row[asks]))
        return Said(Prompt("", content, gold), {k: v for k, v in answer.items() if v is not None})

    return build


def listed(row: Raw, column: str | None, kind: type) -> list[Any] | None:
    """A list of numbers, also where a CSV file has it as text; None where there is none."""
    value = row.get(column) if column else None
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = [value]
    if value is None or value == "":
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(x, (int, float)) for x in value):
        raise ValueError(f"{column!r} is a list of numbers, one a token, got {value!r:.60}")
    try:
        return [kind(x) for x in value]
    except (OverflowError, ValueError):  # an int of 400 digits as a float; nan or inf as an int
        raise ValueError(f"{column!r} holds a number that is none here: {value!r:.60}") from None


def earned(row: Raw, column: str | None) -> float | None:
    """The reward; None where it is missing or says that grading failed."""
    value = row.get(column) if column else None
    if value is None or value == "" or value != value:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{column!r} is a number, got {value!r:.60}") from None


def run_file(source: str | Path) -> Path | None:
    """The database of a run: its folder, or the file itself."""
    path = Path(source)
    path = path / _RUN if path.is_dir() else path
    return path if path.name == _RUN and path.is_file() else None


def run_rows(path: Path) -> Iterator[Raw]:
    """The rollouts that a run stored; those whose reward failed are left out."""
    import sqlite3

    db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        compact = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'bodies'").fetchone()
        rows = list(_stored(db)) if compact else [dict(r) for r in db.execute(_WIDE)]
    except sqlite3.Error as error:
        raise UserError(f"{path} cannot be read as a run's rollouts ({error})") from None
    finally:
        db.close()
    if not rows:
        raise UserError(f"the run in {path.parent} stored no rollouts; store all of them with --log-rollouts -1")
    yield from rows


def _stored(db: Any) -> Iterator[Raw]:
    """Of the present version: streams are bytes, by turns."""
    for r in db.execute(_COMPACT):
        turns = db.execute("SELECT * FROM turns WHERE id = ? ORDER BY turn", (r["id"],))
        whole = last_context([turn(dict(t)) for t in turns])
        yield {k: r[k] for k in ("prompt", "text", "reward")} | {k: whole[k] for k in ("tokens", "logp", "mask")}
