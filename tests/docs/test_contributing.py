"""What CONTRIBUTING says is enough for a new method is enough: its two files are written down, tested and run."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import posttrain as pt
from posttrain.core import laws
from posttrain.core.registry import _PARTS
from tests.runs import tiny_run

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
NAME = "posttrain.systems.policy_gradient.soft_clip"


def loaded(name: str, path: Path, text: str) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(tmp_path: Path) -> Iterator[tuple[ModuleType, ModuleType]]:
    method, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)[:2]
    made = loaded(NAME, tmp_path / "soft_clip.py", method)
    yield made, loaded("test_soft_clip", tmp_path / "test_soft_clip.py", test)
    for stage in ("policy_loss", "method"):
        _PARTS[stage].pop("soft-clip", None)
    for name in (NAME, "test_soft_clip"):
        sys.modules.pop(name, None)


def test_the_two_files_of_the_page_are_enough(files: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    made, test = files
    test.test_value_and_gradient()
    for law in laws.of(made.fading_pull):
        law(made.fading_pull)
    summary = pt.run(
        model=tiny_run.policy(), env=tiny_run.Count(), method=made.soft_clip, steps=1, prompts=2, eval_problems=2, runs=tmp_path,
        sampling={"max_tokens": 4},
    )  # fmt: skip
    assert summary["method"] == "soft-clip" and summary["steps"] == 1
