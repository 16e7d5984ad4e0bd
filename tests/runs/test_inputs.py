"""What a run learns from besides its settings: files, and the modules that they import from their folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.core.python_file import helpers
from posttrain.environments.contents import contents, mentioned
from posttrain.runs.inputs import inputs
from posttrain.runs.settings import agreed


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A reward that imports a module, a package, and through it another module; what is not here is the installation's."""
    package = tmp_path / "words"
    package.mkdir()
    (package / "__init__.py").write_text("from . import lists\n")
    (package / "lists.py").write_text("import helper\nfrom ..outside import x\nGOOD = ['yes']\n")
    (tmp_path / "helper.py").write_text("import mine  # a circle\nBONUS = 1.0\n")
    (tmp_path / "unused.py").write_text("BONUS = 2.0\n")
    (tmp_path / "mine.py").write_text(
        "import json\nimport helper\nfrom words.lists import GOOD\n\ndef f(prompt, text):\n    return helper.BONUS\n"
    )
    return tmp_path / "mine.py"


def test_modules_that_a_file_imports_from_its_folder(mine: Path) -> None:
    names = {str(p.relative_to(mine.parent)) for p in helpers(mine)}
    assert names == {"helper.py", "words/__init__.py", "words/lists.py"}
    assert helpers(mine.with_name("nowhere.py")) == []
    mine.write_text("from ....far import x\n")
    assert helpers(mine) == [] and helpers(Path("mine.py")) == []


@pytest.mark.parametrize(
    "held", [lambda file: inputs(f"numeric + 0.5*{file}:f"), lambda file: contents(f"{file}:Task")]
)
def test_a_changed_helper_is_another_run(mine: Path, held: object) -> None:
    """Of a reward's file and of a task's; comments do not count."""
    helper = mine.with_name("helper.py")

    def now() -> dict[str, object]:
        return {"steps": 4, "inputs": held(mine)}  # type: ignore[operator]

    before = now()
    helper.write_text("import mine\nBONUS = 1.0  # as it was\n")
    assert agreed(mine.parent, before, now(), False, True) == before
    helper.write_text("import mine\nBONUS = 3.0\n")
    with pytest.raises(UserError, match=r"has changed since it began \(.*helper.py was .*, is now .*\)"):
        agreed(mine.parent, before, now(), False, True)


def test_a_run_that_did_not_keep_helpers_goes_on(mine: Path) -> None:
    old = {"steps": 4, "inputs": {str(mine): inputs(f"{mine}:f")[str(mine)]}}
    assert agreed(mine.parent, old, {"steps": 4, "inputs": inputs(f"{mine}:f")}, False, True) == old
    mine.write_text("import helper\n\ndef f(prompt, text):\n    return 0.0\n")
    with pytest.raises(UserError, match=r"mine\.py was"):
        agreed(mine.parent, old, {"steps": 4, "inputs": inputs(f"{mine}:f")}, False, True)


@pytest.mark.parametrize(
    ("option", "files"),
    [
        ("{0}/mine.py:f", ["mine.py", "helper.py", "words/__init__.py", "words/lists.py"]),
        (
            "0.3*phrase:{0}/helper.py:g + 0.5*answer:task",
            ["helper.py", "mine.py", "words/__init__.py", "words/lists.py"],
        ),
        ("{0}/pairs.jsonl(chosen='good')", ["pairs.jsonl"]),
        ("{0}/my pairs.jsonl", ["my pairs.jsonl"]),
        ("http://127.0.0.1:8000/v1", []),
        ("ppo", []),
        ("", []),
    ],
)
def test_files_that_an_option_of_a_plan_names(mine: Path, option: str, files: list[str]) -> None:
    (mine.parent / "pairs.jsonl").write_text('{"prompt": "a", "good": "b", "rejected": "c"}\n')
    (mine.parent / "my pairs.jsonl").write_text("{}\n")
    assert [str(Path(f).relative_to(mine.parent)) for f in mentioned(option.format(mine.parent))] == files
