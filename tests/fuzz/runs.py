"""Folders of runs with damaged or missing files: every command that reads or resumes them works, or says one sentence."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.fuzz.judge import TEXTS, commanded, value

SMALL = ("--prompts", "1", "--num-generations", "2", "--eval-problems", "1", "--sampling.max-tokens", "4", "--save-every", "1",
         "--threads", "1", "--quiet")  # fmt: skip


def fuzz_runs(seed: int, tries: int) -> list[str]:
    """Failures among `tries` damaged folders, each used by one command."""
    failures = []
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place)
        assert commanded("run", "grpo", "--steps", "2", "--runs", place, "--name", "good", *SMALL) is None
        for i in range(tries):
            rng = random.Random(f"runs/{seed}/{i}")
            folder = Path(shutil.copytree(runs / "good", runs / "bad"))
            told = [damage(rng, folder) for _ in range(rng.randint(1, 2))]
            argv = command(rng, runs)
            problem = commanded(*argv)
            if problem:
                failures.append(f"runs, seed {seed} try {i}: {problem}; {told}; {argv[:4]}")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(runs / "out", ignore_errors=True)
    return failures


def command(rng: random.Random, runs: Path) -> list[str]:
    folder = str(runs / "bad")
    return rng.choice((
        ["runs", "--runs", str(runs)],
        ["runs", "--runs", str(runs), "--json"],
        ["samples", folder],
        ["samples", folder, "--worst"],
        ["export", folder, "--to", str(runs / "out")],
        ["export", folder, "--metrics", str(runs / "out.csv")],
        ["chat", "--model", folder, "--say", "hi", "--max-tokens", "2"],
        ["run", "grpo", "--steps", "2", "--runs", str(runs), "--name", "bad", *SMALL],
        ["run", "grpo", "--steps", "3", "--runs", str(runs), "--name", "bad", *SMALL],
        ["compare", folder, str(runs / "good")],
    ))  # fmt: skip


def damage(rng: random.Random, folder: Path) -> str:
    """Change something in it, and say what."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != ".lock")
    if not files:
        return "nothing left"
    file = rng.choice(files)
    if rng.random() < 0.4:
        file = folder / rng.choice(("config.json", "run.sqlite", "summary.json", "notes.json"))
    kind = rng.choice((removed, cut, flipped, replaced, changed_key, made_a_folder))
    with suppress(OSError, ValueError, TypeError, RecursionError):
        kind(rng, file)
    return f"{file.relative_to(folder)}: {kind.__name__}"


def removed(rng: random.Random, file: Path) -> None:
    file.unlink()


def cut(rng: random.Random, file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(len(data) or 1)])


def flipped(rng: random.Random, file: Path) -> None:
    data = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 30)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    file.write_bytes(bytes(data))


def replaced(rng: random.Random, file: Path) -> None:
    file.write_text(rng.choice(("", "[]", "{}", "null", "3", "[" * 50_000, '"\\ud800"', "9" * 6000, "nonsense")))


def changed_key(rng: random.Random, file: Path) -> None:
    file = file.with_name("config.json") if file.suffix != ".json" else file
    table = json.loads(file.read_text())
    table[rng.choice([*table, *TEXTS[:4]])] = value(rng)
    file.write_text(json.dumps(table))


def made_a_folder(rng: random.Random, file: Path) -> None:
    file.unlink(missing_ok=True)
    file.mkdir()


__all__ = ["fuzz_runs"]
