"""Fenced blocks of the documentation, and a way to run them: in order, page by page, each page in a folder of its own.

    ```bash                 lines that begin with `posttrain`, run by `posttrain.cli.main` in this process
    ```python               run as one script
    ```json title="x.jsonl" (any language with a title) written to that file
    ```text                 shown, not run
    ```bash no-test         shown, not run: installs, servers, other people's libraries
    ```bash needs="mcp"     run where that module is installed
Runs are shortened: whatever a snippet says, at most 2 steps of 2 prompts with 4 answers of 8 tokens, and 4 held-out problems.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs/from-trl.md",
    ROOT / "docs/metrics.md",
    ROOT / "docs/workshop.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
]
LANGUAGES = ("bash", "python", "json", "toml", "text")
AT_MOST = {"steps": 2, "prompts": 2, "eval_problems": 4}
ANSWERS, TOKENS = 4, 8
_FENCE = re.compile(r"^(?P<ticks>````?)(\w*)([^`\n]*)\n(.*?)^(?P=ticks)$", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r'needs="(\w+)"')
_TITLE = re.compile(r'title="([^"]+)"')


@dataclasses.dataclass(frozen=True)
class Block:
    """One fenced block: its language, whether it opts out, the file it is to be written to, and where it stands."""

    language: str
    tested: bool
    title: str
    code: str
    where: str


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    text = page.read_text()
    out = []
    for found in _FENCE.finditer(text):
        _, language, rest, code = found.groups()
        title = _TITLE.search(rest)
        where = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
        needs = _NEEDS.search(rest)
        there = needs is None or find_spec(needs[1]) is not None
        tested = "no-test" not in rest.split() and language != "text" and there
        out.append(Block(language, tested, title[1] if title else "", code, where))
    return out


def commands(block: Block) -> list[list[str]]:
    """The words of each command of a bash block."""
    joined = block.code.replace("\\\n", " ")
    return [words for line in joined.splitlines() if (words := shlex.split(line, comments=True))]


def small(config: Any) -> Any:
    """The settings with a budget of seconds."""
    changes: dict[str, Any] = {key: min(getattr(config, key), most) for key, most in AT_MOST.items()}
    changes["num_generations"] = min(config.num_generations or ANSWERS, ANSWERS)
    changes["sampling"] = dataclasses.replace(config.sampling, max_tokens=min(config.sampling.max_tokens, TOKENS))
    return dataclasses.replace(config, **changes)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Every run, by command or from Python, goes through `api.run_config`: there it gets its budget."""
    import posttrain.api

    whole = posttrain.api.run_config
    patch.setattr(posttrain.api, "run_config", lambda config, *rest, **more: whole(small(config), *rest, **more))


@contextmanager
def at_home_in(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user who works in that folder; modules loaded from it are forgotten afterwards."""
    before = set(sys.modules)
    patch.chdir(folder)
    patch.syspath_prepend(str(folder))
    yield
    for name in set(sys.modules) - before:
        if str(folder) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


def run(block: Block) -> None:
    """Do what a block says; an error tells where it stands."""
    if block.title:
        Path(block.title).write_text(block.code)
    elif block.language == "python":
        exec(compile(block.code, block.where, "exec"), {"__name__": "snippet"})
    else:
        for words in commands(block):
            run_command(words, block.where)


def run_command(words: list[str], where: str) -> None:
    from posttrain.cli import main

    assert words[0] == "posttrain", f"{where}: {words[0]} is not run by this test; mark the block no-test"
    code = main(words[1:])
    fine = (0, 1) if words[1] == "audit" else (0,)  # 1: it found something, which is its job
    assert code in fine, f"{where}: {shlex.join(words)} ended with {code}"
