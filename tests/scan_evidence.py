"""Which tests stand behind which part: writes posttrain/evidence.json.

    python -m tests.scan_evidence            write it
    python -m tests.scan_evidence --check    exit 1 if it is not up to date

formula: a test of a stage (tests/losses and the like) that uses the part: imported, or asked for by name with `find` (if other parts
         have that name, under the part's own folder).
learns:  a test in a file test_learns*.py that names the part: imported, as a text, or as a parameter.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.core.registry import LOSSES, Part, fold, parts

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "posttrain" / "evidence.json"
GENERIC = ("test_laws", "test_partition", "test_imports")  # run over the whole registry: they name no part
STAGES = (
    "advantages",
    "evals",
    "losses",
    "rewards",
    "rollouts",
    "select",
    "weights",
)  # folders whose tests are of formulas
WHOLE = ("method", "plan")  # a text "grpo" in a test of losses is the advantage, not the method
FOLDERS = {  # where the tests of a stage are, also of parts that live with their system
    "environment": "environments", "prompts": "prompts", "rollout": "rollouts", "reward": "rewards", "shaping": "rewards",
    "keep": "select", "advantage": "advantages", "term": "losses", "aggregate": "losses", "optimiser": "weights",
    "reference": "weights", "decoding": "decoding", "eval": "evals", "method": "methods", "plan": "methods",
} | dict.fromkeys(LOSSES, "losses")  # fmt: skip


@dataclass
class Names:
    """What a test function names: things imported from posttrain, texts passed to `find`, all texts."""

    imported: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)


def names_in(file: Path) -> dict[str, Names]:
    """For each test function of a file; a table at the top of the file belongs to the tests that use it."""
    tree = ast.parse(file.read_text())
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("posttrain.")]
    alias = {a.asname or a.name: f"{n.module}.{a.name}" for n in imports for a in n.names}
    tables = {t.id: n for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    finders = {"find", *(f.name for f in functions if "find" in loads(f))}
    out = {}
    for test in functions:
        if test.name.startswith("test_"):
            nodes = [test, *(tables[n] for n in sorted(loads(test)) if n in tables)]
            out[test.name] = Names(
                {place for node in nodes for place in places(node, alias)},
                {t for node in nodes for t in passed_to(node, finders)},
                {t for node in nodes for t in texts(node)},
            )
    return out


def places(node: ast.AST, alias: dict[str, str]) -> set[str]:
    """What is used of the imports, with its module: `rules.regex` of an imported module, too."""
    inner = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    dotted = {f"{alias[n.value.id]}.{n.attr}" for n in inner if n.value.id in alias}  # type: ignore[attr-defined]
    return dotted | {alias[n] for n in loads(node) if n in alias}


def loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def texts(node: ast.AST) -> set[str]:
    """Written in the code; `cispo(high=4)` and `dr_grpo` as the names they stand for."""
    found = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
    return {fold(t.partition("(")[0]) for t in found}


def passed_to(node: ast.AST, functions: set[str]) -> set[str]:
    calls = [c for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)]
    return {t for c in calls if c.func.id in functions for a in c.args[:1] for t in texts(a)}  # type: ignore[attr-defined]


def collected() -> list[str]:
    """The ids of all learning tests, parameters included: `tests/losses/test_learns.py::test_policy_losses[cispo]`."""
    files = [str(f.relative_to(ROOT)) for f in sorted((ROOT / "tests").rglob("test_learns*.py"))]
    command = [sys.executable, "-m", "pytest", "-o", "addopts=", "--collect-only", "-q", *files]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if made.returncode:
        raise SystemExit(f"pytest could not collect the learning tests:\n{made.stdout[-2000:]}")
    return [line for line in made.stdout.splitlines() if "::" in line]


def supports(p: Part, names: Names, folder: str, learns: bool) -> bool:
    """Does a test that names these stand behind this part?"""
    module = p.card.file.removesuffix(".py").replace("/", ".")
    near = FOLDERS[p.card.stage] == folder
    own = p.card.name.replace("-", "_") if p.card.stage in WHOLE else p.fn.__name__
    whole = set() if module.startswith("posttrain.systems.") else {module}  # a system's file holds several parts
    if ({f"{module}.{own}"} | whole) & names.imported:
        return near or learns or folder in STAGES
    if p.card.stage in WHOLE:
        return near and p.name in (names.texts if learns else names.found)
    alone = sum(q.name == p.name and q.card.stage not in WHOLE for q in parts()) == 1
    return p.name in names.texts if learns else (near or (alone and folder in STAGES)) and p.name in names.found


def scan(ids: list[str]) -> dict[str, dict[str, list[str]]]:
    """stage/name -> {"formula": [test ids], "learns": [test ids]}."""
    every = [p for p in parts() if p.card.stage != "claim"]
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if file.stem in GENERIC:
            continue
        where, learns = str(file.relative_to(ROOT)), file.stem.startswith("test_learns")
        for test, names in names_in(file).items():
            for p in every:
                if supports(p, names, Path(where).parts[1], learns):
                    found[f"{p.card.stage}/{p.name}"]["learns" if learns else "formula"].add(f"{where}::{test}")
    for id in ids:
        match = re.match(r"(tests/(\w+)/.+::\w+)\[([\w-]+)", id)
        for p in every if match else ():
            if match and fold(match[3]) == p.name and (p.card.stage not in WHOLE or match[2] == FOLDERS[p.card.stage]):
                found[f"{p.card.stage}/{p.name}"]["learns"].add(match[1])
    return {k: {level: telling(v, k) for level, v in sorted(found[k].items())} for k in sorted(found)}


def telling(tests: set[str], key: str) -> list[str]:
    """Those that bear the part's name first: they are shown first."""
    name = key.partition("/")[2].replace("-", "_")
    return sorted(tests, key=lambda t: (name not in t.rpartition("::")[2], t))


def main() -> int:
    text = json.dumps(scan(collected()), indent=1) + "\n"
    if "--check" in sys.argv:
        if not TABLE.is_file() or TABLE.read_text() != text:
            print("posttrain/evidence.json is not up to date; run python -m tests.scan_evidence", file=sys.stderr)
            return 1
        return 0
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
