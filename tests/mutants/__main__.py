"""Apply one mutant at a time to a copy of the project and run the tests that should notice: `make mutants`.

    python -m tests.mutants [--jobs 2] [--only WORD] [--least 0.95]

Exit code 1 where fewer than --least are caught, a test fails without any mutant, or a mutant no longer applies. Every mutant runs in
a fork of one process, which has the slow imports behind it: it has run a method once, so that what libraries import late is there too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import multiprocessing
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from queue import Queue
from typing import Any

from tests.mutants import ROOT, Mutant, mutants

SLOW = ("torch", "torch._dynamo", "transformers", "pytest", "tokenizers", "safetensors")  # imported once, by the parent
PASSED, FAILED, STALE = 0, 1, 9  # exit codes of pytest; others mean that the tests could not be run


def main() -> int:
    ask = argparse.ArgumentParser(prog="python -m tests.mutants", description="Do the tests notice what is wrong?")
    ask.add_argument("--jobs", type=int, default=2, help="mutants side by side")
    ask.add_argument("--only", default="", help="those whose name, kind, file or tests hold this")
    ask.add_argument("--least", type=float, default=0.95, help="share that must be caught")
    told = ask.parse_args()
    chosen = [m for m in mutants() if told.only in f"{m.name} {m.kind} {m.file} {m.tests}"]
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    sys.dont_write_bytecode = True  # a mutant of the same size within a second must not meet its neighbour's bytecode
    for name in SLOW:
        importlib.import_module(name)
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        importlib.import_module("tests.wiring.spies").traced("grpo")
    gc.collect()
    gc.freeze()  # what is there stays: no child looks through it again, nor copies it for that
    with tempfile.TemporaryDirectory() as folder:
        try:
            return judged(chosen, Path(folder), told.jobs, told.least)
        finally:
            gc.unfreeze()


def judged(chosen: list[Mutant], folder: Path, jobs: int, least: float) -> int:
    """Run them all, print each as it ends and the share at the end."""
    from multiprocessing.pool import ThreadPool

    free: Queue[Path] = Queue()
    for i in range(jobs):
        free.put(copied(folder / f"copy{i}"))
    whole = {file: without(file, chosen) for file in sorted({file_of(m) for m in chosen})}
    with ThreadPool(jobs) as pool:
        sound = pool.imap_unordered(lambda file: (file, verdict(None, whole[file], free)), whole)
        wrong = {file for file, code in sound if code != PASSED}
        seen: Counter[tuple[str, str]] = Counter()
        for m, code, seconds in pool.imap_unordered(lambda m: timed(m, free), chosen):
            word = {PASSED: "MISSED", FAILED: "caught"}.get(code, "BROKEN")
            word = "UNSOUND" if file_of(m) in wrong else word  # the tests fail without it too
            seen[m.kind, word] += 1
            print(
                f"{word:7}  {seconds:5.1f} s  {m.kind:7}  {m.name}" + ("" if word == "caught" else f"  [{m.tests}]"),
                flush=True,
            )
    for kind in sorted({kind for kind, _ in seen}):
        print(f"{kind}: {seen[kind, 'caught']} of {sum(n for (k, _), n in seen.items() if k == kind)} caught")
    caught = sum(n for (_, word), n in seen.items() if word == "caught")
    print(f"{caught} of {len(chosen)} mutants caught, {100 * caught / max(len(chosen), 1):.1f}%")
    return int(caught < least * len(chosen) or any(word in ("BROKEN", "UNSOUND") for _, word in seen))


def file_of(m: Mutant) -> str:
    return shlex.split(m.tests)[0].split("::")[0]


def without(file: str, chosen: list[Mutant]) -> str:
    """The tests of a file that its mutants name, all of them where one names the whole file."""
    words = [shlex.split(m.tests)[1:] for m in chosen if file_of(m) == file]
    if any(len(w) != 2 or w[0] != "-k" for w in words) or any("::" in m.tests for m in chosen if file_of(m) == file):
        return file
    return shlex.join([file, "-k", " or ".join(dict.fromkeys(f"({w[1]})" for w in words))])


def timed(m: Mutant, free: Queue[Path]) -> tuple[Mutant, int, float]:
    began = time.perf_counter()
    return m, verdict(m, m.tests, free), time.perf_counter() - began


def verdict(m: Mutant | None, tests: str, free: Queue[Path]) -> int:
    """The exit code of the tests on a copy with this mutant."""
    copy = free.get()
    source = (copy / m.file).read_text() if m else ""
    try:
        if m:
            (copy / m.file).write_text(m.applied(source))
        child = multiprocessing.get_context("fork").Process(target=tried, args=(copy, shlex.split(tests)))
        child.start()
        child.join(300)
        if child.is_alive():  # one that never ends was noticed too
            child.kill()
            child.join()
            return FAILED
        return child.exitcode if child.exitcode is not None else 2
    except ValueError as stale:
        print(stale)
        return STALE
    finally:
        if m:
            (copy / m.file).write_text(source)
        free.put(copy)


def tried(copy: Path, tests: list[str]) -> None:
    """In the child: forget this project, import the copy, run its tests, say nothing."""
    import pytest

    os.chdir(copy)
    sys.path[:] = [str(copy), *(p for p in sys.path if p not in ("", str(ROOT)))]
    for name in [n for n in sys.modules if n.split(".")[0] in ("tests", "posttrain", "claims")]:
        del sys.modules[name]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        code: Any = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=no", *tests])
    os._exit(int(code))


def copied(folder: Path) -> Path:
    """A copy of the project."""
    skip = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")
    for name in ("posttrain", "tests", "claims", "examples", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, folder / file.name)
    return folder


if __name__ == "__main__":
    sys.exit(main())
