"""Which tests stand behind which part, as the tests declare it: read from their source, nothing is run.

    @pytest.mark.derived("policy_loss/cispo", "advantage/grpo")    its expected values are derived by hand for these parts
    @pytest.mark.learns("policy_loss/cispo")                       a tabular policy improves with it

`make index` writes what is found here into posttrain/index.json.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from posttrain.core.errors import UserError

TESTS = Path(__file__).parent
MARKS = ("derived", "learns")


def declared(folder: Path = TESTS) -> dict[str, dict[str, list[str]]]:
    """stage/name -> {"derived": [test ids], "learns": [test ids]}; tests that bear the part's name come first."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: {mark: [] for mark in MARKS})
    for file in sorted(folder.rglob("test_*.py")):
        for test, mark, key in marks_in(file):
            found[key][mark].append(f"{file.relative_to(folder.parent)}::{test}")
    return {k: {mark: telling(tests, k) for mark, tests in found[k].items()} for k in sorted(found)}


def marks_in(file: Path) -> Iterator[tuple[str, str, str]]:
    """(test, mark, stage/name) for every declaration of a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            for call in (d for d in node.decorator_list if isinstance(d, ast.Call)):
                mark = ast.unparse(call.func).removeprefix("pytest.mark.")
                if mark in MARKS:
                    yield from ((node.name, mark, key) for key in keys(call, f"{file.name}::{node.name}"))


def keys(call: ast.Call, test: str) -> list[str]:
    """The parts that a mark names, each written out."""
    plain = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    if not plain or len(plain) != len(call.args) or call.keywords or not all("/" in p for p in plain):
        raise UserError(f'{test}: write each part out, as in {ast.unparse(call.func)}("policy_loss/cispo")')
    return plain


def telling(tests: list[str], key: str) -> list[str]:
    """Those that bear the part's name first: they are shown first."""
    name = key.partition("/")[2].replace("-", "_")
    return sorted(tests, key=lambda t: (name not in t.rpartition("::")[2], t))
