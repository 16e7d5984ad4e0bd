"""Data files of strangers: a task whose prompts can be read and graded, or one sentence."""

from __future__ import annotations

import csv
import io
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from posttrain.environments.task import log_task, of_rows, pair_task, task
from posttrain.rewards.scorers.spec import task_scorer
from tests.fuzz.judge import TEXTS, tried, value

NAMES = ("question", "prompt", "answer", "chosen", "rejected", "instruction", "input", "output", "messages", "completion", "choices",
         "conversations", "reward", "label", "responses", "scores", "ranks", "votes", "preferred", "annotator", "annotations", "solution", "text", "response", "id", "system", "actions", "logp")  # fmt: skip
GOOD = (
    {"question": "2+3?", "answer": "5"}, {"prompt": "Say hello.", "chosen": "Hello!", "rejected": "No."},
    {"instruction": "Add.", "input": "2, 3", "output": "5"}, {"prompt": "2+3?", "response": "5", "reward": 1.0},
    {"messages": [{"role": "user", "content": "2+3?"}, {"role": "assistant", "content": "5"}]},
    {"prompt": "Say hello.", "responses": ["Hello!", "No.", "Hi"], "scores": [3, 1, 2]}, {"prompt": "2+3?", "completion": "5", "label": True},
    {"prompt": "2+3?", "chosen": "5", "rejected": "6", "preferred": 0.8, "annotator": "ann", "votes": [1, 0, 1]},
    {"question": "Which?", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answer": "A"},
)  # fmt: skip


def fuzz_data(seed: int, tries: int) -> list[str]:
    """Failures among `tries` files."""
    failures = []
    with tempfile.TemporaryDirectory() as place:
        for i in range(tries):
            rng = random.Random(f"data/{seed}/{i}")
            rows = some_rows(rng)
            file = written(rng, rows, Path(place) / f"d?ata{i}")
            problem = tried(lambda rng=rng, file=file, rows=rows: used(rng, file, rows))  # type: ignore[misc]
            if problem:
                failures.append(f"data, seed {seed} try {i}: {problem}; {file.suffix} {str(rows)[:300]}")
            file.unlink(missing_ok=True)
    return failures


def some_rows(rng: random.Random) -> list[Any]:
    good = rng.choice(GOOD)
    rows: list[Any] = [dict(good) for _ in range(rng.randint(1, 12))]
    for _ in range(rng.randint(0, 3)):
        row = rng.choice(rows)
        if isinstance(row, dict):
            row[rng.choice((*NAMES, *good))] = value(rng)
        if rng.random() < 0.2:
            rows[rng.randrange(len(rows))] = value(rng)
        elif isinstance(row, dict) and row and rng.random() < 0.2:
            del row[rng.choice(list(row))]
    return rows


def written(rng: random.Random, rows: list[Any], stem: Path) -> Path:
    """The rows in some format, sometimes damaged."""
    kind = rng.choice((".jsonl", ".jsonl", ".json", ".csv"))
    file = stem.with_name(stem.name + kind)
    if kind == ".csv":
        out = io.StringIO()
        tables = [r for r in rows if isinstance(r, dict)]
        columns = list(dict.fromkeys(k for r in tables for k in r))
        if columns:
            table = csv.writer(out)
            table.writerow(columns)
            table.writerows([[str(r.get(c, "")) for c in columns] for r in tables])
        data = out.getvalue().encode("utf-8", "surrogatepass")
    else:
        lines = [json.dumps(r, default=str) for r in rows]
        data = ("\n".join(lines) if kind == ".jsonl" else f"[{', '.join(lines)}]").encode()
    if rng.random() < 0.25:
        data = bytearray(data)  # type: ignore[assignment]
        for _ in range(rng.randint(1, 5)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)  # type: ignore[index]
    if rng.random() < 0.1:
        data = rng.choice(
            (b"", b"\xff\xfe", b"[" * 20_000, b'{"a":' * 5000, b"\xef\xbb\xbf" + bytes(data), b"9" * 6000, b"null")
        )
    file.write_bytes(bytes(data))
    return file


def used(rng: random.Random, file: Path, rows: list[Any]) -> None:
    """Read it as a task, as pairs, as a log or as rows of Python, and use it as a run would."""
    how = rng.randrange(5)
    if how == 0:
        pair_task(str(file), kind=rng.choice(("pairs", "lists", "labels")))
        return
    if how == 1:
        log_task(str(file))
        return
    env = of_rows(rows, "") if how == 2 else task(str(file))
    for split in ("train", "test"):
        for index in range(3):
            prompt = env.prompt(index, split)
            assert prompt.content and isinstance(prompt.last, str), "an empty prompt"
            prompt.last.encode()
            if env.graded:
                texts = ["", "5", str(prompt.answer), rng.choice(TEXTS)]
                grades, _ = task_scorer(env).texts(
                    [prompt] * 4, texts
                )  # a gold answer that cannot be compared is masked
                assert all(g != g or 0 <= g <= 1 for g in grades), f"grades {grades}"


__all__ = ["fuzz_data"]
