"""Which tests stand behind which part: writes posttrain/evidence.json.

    python tests/scan_evidence.py            write it
    python tests/scan_evidence.py --check    exit 1 if it is not up to date

formula: a test under tests/<the part's folder> that uses the part, imported by name.
learns:  a test in a file test_learns*.py that names the part, as an import, a text or a parameter.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "posttrain" / "evidence.json"
GENERIC = ("test_laws", "test_partition", "test_imports")  # run over the whole registry: they name no part
Used = dict[str, set[str]]  # test function -> what it names


def names_in(file: Path) -> tuple[Used, Used]:
    """test function -> "module.name" of what it uses of posttrain; and the texts written in it."""
    tree = ast.parse(file.read_text())
    imported = {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("posttrain.")
        for alias in node.names
    }
    tables = {
        target.id: node
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    used: Used = {}
    texts: Used = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        inside = [node, *(tables[n] for n in loads(node) if n in tables)]
        used[node.name] = {imported[n] for part in inside for n in loads(part) if n in imported}
        texts[node.name] = {
            c.value for part in inside for c in ast.walk(part) if isinstance(c, ast.Constant) and isinstance(c.value, str)
        }
    return used, texts


def loads(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def collected() -> list[str]:
    """The ids of all tests, parameters included: `tests/losses/test_learns.py::test_policy_losses[cispo]`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--continue-on-collection-errors", "tests"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [line for line in made.stdout.splitlines() if "::" in line]


def scan(ids: list[str]) -> dict[str, dict[str, list[str]]]:
    """stage/name -> {"formula": [test ids], "learns": [test ids]}."""
    from posttrain.core.registry import fold, parts

    every = [p for p in parts() if p.card.stage not in ("claim",)]
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        where = str(file.relative_to(ROOT))
        learns = file.stem.startswith("test_learns")
        if file.stem in GENERIC:
            continue
        used, texts = names_in(file)
        for p in every:
            module = p.card.file.removesuffix(".py").replace("/", ".")
            mine = f"{module}.{p.card.name.replace('-', '_')}"
            near = module.split(".")[1] == Path(where).parts[1]
            for test in used:
                if mine in used[test] and (near or learns):
                    found[f"{p.card.stage}/{p.name}"]["learns" if learns else "formula"].add(f"{where}::{test}")
                if learns and p.card.stage not in ("method", "plan") and p.name in {fold(t.split("(")[0]) for t in texts[test]}:
                    found[f"{p.card.stage}/{p.name}"]["learns"].add(f"{where}::{test}")
    for id in ids:
        match = re.match(r"(tests/(\w+)/.*test_learns\w*\.py::\w+)\[([\w-]+)[^\]]*\]$", id)
        for p in every if match else ():
            assert match is not None
            whole = p.card.stage in ("method", "plan")
            if fold(match[3]) == p.name and (not whole or match[2] == p.card.file.split("/")[1]):
                found[f"{p.card.stage}/{p.name}"]["learns"].add(match[1])
    return {k: {level: sorted(v) for level, v in sorted(found[k].items())} for k in sorted(found)}


def main() -> int:
    text = json.dumps(scan(collected()), indent=1) + "\n"
    if "--check" in sys.argv:
        if not TABLE.is_file() or TABLE.read_text() != text:
            print("posttrain/evidence.json is not up to date; run python tests/scan_evidence.py", file=sys.stderr)
            return 1
        return 0
    TABLE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
