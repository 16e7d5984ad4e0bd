"""What the documentation says runs: every command, every Python block, every option and part that it names."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from posttrain.cli import COMMANDS, command_parser
from posttrain.commands.run import MANY, PARTS
from posttrain.core.method import FIELD_STAGES
from posttrain.core.registry import find, split_sum
from tests.docs.snippets import LANGUAGES, PAGES, ROOT, Block, at_home_in, blocks, commands, run, run_command, shorten

EVERY = [block for page in PAGES for block in blocks(page)]
NOTEBOOK = ROOT / "examples/quickstart.ipynb"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_every_snippet_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    with at_home_in(tmp_path, monkeypatch):
        for block in blocks(page):
            if block.tested:
                run(block)


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)
    book = json.loads(NOTEBOOK.read_text())
    assert book["nbformat"] == 4
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    space: dict[str, object] = {"__name__": "notebook"}
    with at_home_in(tmp_path, monkeypatch):
        for i, code in enumerate(cells):
            exec(compile(code, f"quickstart.ipynb cell {i}", "exec"), space)


def test_every_block_says_what_it_is() -> None:
    assert [b.where for b in EVERY if b.language not in LANGUAGES] == []


def test_opting_out_is_rare() -> None:
    out = [b.where for b in EVERY if not b.tested and b.language != "text"]
    assert len(out) <= len(EVERY) // 6, out


def test_a_wrong_command_or_script_would_be_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with at_home_in(tmp_path, monkeypatch):
        with pytest.raises(AssertionError, match="ended with 2"):
            run(Block("bash", True, "", "posttrain run grpo --temprature 1\n", "here"))
        with pytest.raises(AssertionError, match="mark the block no-test"):
            run_command(["curl", "localhost"], "here")
        with pytest.raises(ZeroDivisionError):
            run(Block("python", True, "", "1 / 0\n", "here"))


def test_a_block_that_needs_a_package_is_run_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.snippets.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text('```bash needs="json"\nposttrain list\n```\n```bash needs="no_such_package"\nposttrain list\n```\n')
    assert [block.tested for block in blocks(page)] == [True, False]


# ---- what is named in running text and tables

QUOTED = [code for page in PAGES for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text())]
OPTIONS = {name for command in COMMANDS for name in command_parser(command).names()}


def test_every_option_that_is_named_exists() -> None:
    named = {word for code in QUOTED for word in re.findall(r"(?:^|\s)(--[a-z][a-z0-9.-]*)", code)}
    assert len(named) > 30  # the tables are read at all
    assert sorted(named - OPTIONS - {"--no-deps"}) == []


def test_every_part_that_is_named_exists() -> None:
    """`--loss "ppo(low=0.2, high=0.28)"` in a table is a loss with those parameters."""
    seen = 0
    for code in QUOTED:
        words = shlex.split(code) if code.startswith("--") and code.count('"') % 2 == 0 else []
        for option, value in zip(words, words[1:]):
            key = option.removeprefix("--").replace("-", "_")
            if key not in PARTS or value == "none":
                continue
            field = PARTS[key][0]
            for name in split_sum(value) if field in MANY else [value]:
                find(name, *FIELD_STAGES[field]).live()
                seen += 1
    assert seen > 15


def test_every_method_that_is_named_exists() -> None:
    lines = [shlex.split(code) for code in QUOTED if code.startswith("posttrain run ")]
    lines += [words for b in EVERY if b.language == "bash" for words in commands(b)]
    runs = [words for words in lines if words[:2] == ["posttrain", "run"]]
    names = {words[2] for words in runs if not words[2].startswith("--config")} - {"NAME"}
    assert len(names) > 5
    for name in names:
        find(name, "method", "plan")


def test_the_tree_of_the_readme_is_the_tree() -> None:
    """Folders under posttrain/ and beside it that the README lists exist, and none of the package's is left out."""
    [tree] = [b.code for b in blocks(ROOT / "README.md") if b.language == "text" and "train.py" in b.code]
    listed = set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))
    there = {p.name for p in (ROOT / "posttrain").iterdir() if p.is_dir() and not p.name.startswith(("_", "."))}
    assert listed == there
    assert all((ROOT / name).is_dir() for name in re.findall(r"^(\w+)/ ", tree, re.MULTILINE))
