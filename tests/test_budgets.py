"""Budgets are tests: short files and functions, few settings, a fast import. The layers: tests/core/test_tree.py."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.core.config import count_keys

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "posttrain").rglob("*.py"))


def functions(path: Path) -> list[tuple[str, int, int]]:
    """(name, lines, arguments) of every function of a file."""
    tree = ast.parse(path.read_text())
    out = []
    for node in ast.walk(tree):
        kernel = any(
            "jit" in ast.unparse(d) for d in getattr(node, "decorator_list", [])
        )  # a GPU kernel takes pointers
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not kernel:
            a = node.args
            count = len(a.posonlyargs + a.args + a.kwonlyargs) - any(x.arg in ("self", "cls") for x in a.args[:1])
            out.append((f"{path.relative_to(ROOT)}:{node.name}", (node.end_lineno or 0) - node.lineno + 1, count))
    return out


def test_a_reader_can_finish_every_file():
    long = {str(p.relative_to(ROOT)): n for p in SOURCES if (n := len(p.read_text().splitlines())) > 300}
    assert not long


def test_the_loop_is_at_most_60_lines():
    assert len((ROOT / "posttrain/train.py").read_text().splitlines()) <= 60


def test_functions_are_short():
    every = [f for p in SOURCES for f in functions(p)]
    lengths = sorted(n for _, n, _ in every)
    assert lengths[int(0.9 * len(lengths))] <= 50
    assert sum(n > 80 for n in lengths) < 0.04 * len(lengths)


def test_functions_take_at_most_seven_arguments():
    many = [
        (name, args) for p in SOURCES for name, _, args in functions(p) if args > 7 and not name.endswith("__init__")
    ]
    assert not many


def test_settings_are_few():
    assert count_keys() < 100


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module} | {
        a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    }


@pytest.mark.parametrize("folder", ["losses", "advantages"])
def test_formulas_know_no_engine(folder):
    for path in (ROOT / "posttrain" / folder).rglob("*.py"):
        bad = [
            m
            for m in imports(path)
            if m.startswith(("posttrain.inference", "posttrain.models", "posttrain.core.config"))
        ]
        assert not bad, f"{path.name} imports {bad}"


def test_no_utils():
    bad = [p for p in SOURCES if p.stem in ("utils", "util", "common", "helpers", "misc")]
    assert not bad


def test_import_is_fast_help_needs_no_torch_and_a_policy_no_fsdp():
    code = """
import sys, time
began = time.process_time()
import posttrain
took = time.process_time() - began
assert "torch" not in sys.modules and took < 1, took
from posttrain.cli import main
try:
    main(["--help"])
except SystemExit:
    pass
assert "torch" not in sys.modules
import posttrain.policies.load, posttrain.runs.build
assert "torch" in sys.modules and not {"torch.distributed.fsdp", "torch.distributed.tensor"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_wheel_carries_the_weights():
    config = (ROOT / "pyproject.toml").read_text()
    assert "models/pocket/*" in config and "models/pocket2/*" in config
    weights = ROOT / "posttrain/models/pocket/model.safetensors"
    assert 1_000_000 < weights.stat().st_size <= 8_000_000


def test_nothing_unpickles():
    for path in SOURCES:
        text = path.read_text()
        assert "torch.load(" not in text and "pickle.load" not in text, path
