"""A hash of the code an experiment ran, so that a result knows when it has gone stale. Imports no torch.

It covers the claim's file and every definition of posttrain that this leads to, in the folders where ideas are written:
a function, class or constant that is named there, what that names in turn, and so on. Other definitions of the same
files, comments, docstrings, titles, types of arguments and formatting do not count; a changed constant does.

The ground (the loop, the learner, models, engines) does not count: it is held by property tests (layouts and pieces give
one gradient, sampler and trainer agree, a resumed run is the same run), and hundreds of experiments cannot be repeated
whenever it becomes faster. A result records the ground's hash too; `posttrain check --outdated` repeats those it differs for.
"""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FOLDERS = ["advantages", "decoding", "environments", "evals", "losses", "methods", "prompts", "rewards", "rollouts", "select", "systems", "weights"]  # fmt: skip
_GROUND = (
    "core",
    "inference",
    "models",
    "policies",
    "runs",
    "serving",
    "train.py",
    "weights/learner.py",
    "weights/masters.py",
    "weights/schedules.py",
    "weights/tally.py",
    "weights/settings.py",
    "losses/objective.py",
)
_REPORTS = ("runs/compare.py",)
_WORDS = (
    "title",
    "says",
    "experiment",
    "tried",
    "departures",
    "doc",
    "paper",
    "laws",
    "base",
    "system",
    "family",
    "level",
)  # told, not used

Place = tuple[str, str]  # a file and the name of a definition in it; "" for the whole file

_ARMS = "claims/machinery/arms.py"  # how an arm trains and measures; verdicts are computed on reading, so they are no part of it
_ANYWHERE = ("methods", "systems", "environments")
_NAMING = {
    "method",
    "reward",
    "rollout",
    "prompts",
    "select",
    "shaping",
    "advantage",
    "loss",
    "terms",
    "aggregate",
    "reference",
}


def fingerprint(file: str) -> str:
    """Hash of the claim in `file` (relative to the project) and of the ideas it leads to."""
    return _hash(reached(file))


def fingerprints(file: str) -> tuple[str, str]:
    """The same, and as it was made while the words at the top of a file counted: earlier records have that one."""
    return fingerprint(file), _hash(reached(file), words=True)


def ground(file: str) -> str:
    """Hash of the ground that the claim runs on."""
    return _hash([place for place in reached(file, whole=True) if _is_ground(place[0])])


def _hash(places: list[Place], words: bool = False) -> str:
    digest = hashlib.sha256()
    for path, name in places:
        nodes = [n for n in _nodes(path, name) if words or not _is_told(n)]
        digest.update(f"{path}:{name} {' '.join(map(_dump, nodes))}\n".encode())
    return digest.hexdigest()[:16]


def reached(file: str, whole: bool = False) -> list[Place]:
    """Every definition that is part of the idea or its experiment, and where asked of the ground, in a fixed order."""
    found: set[Place] = set()
    todo: list[Place] = [(file, ""), *by_name(file)]
    while todo:
        place = todo.pop()
        if place not in found and (place[0] == file or _counts(place[0]) or (whole and _is_ground(place[0]))):
            found.add(place)
            todo += _named(*place)
    return sorted(found)


def by_name(file: str) -> list[Place]:
    """The files of what a claim names in text, as the public API takes it: methods, plans and tasks wherever they are named
    (method="reft(steps=40)", "word_problems"), other parts where a keyword says that it is one (loss="cispo(high=4)")."""
    anywhere, parts = _words(_tree(file), set()), _words(_tree(file), _NAMING)
    out = []
    for folder in _FOLDERS:
        wanted = anywhere if folder in _ANYWHERE else parts
        out += [p for p in (ROOT / "posttrain" / folder).rglob("*.py") if p.stem in wanted or _registers(p) & wanted]
    return [(str(p.relative_to(ROOT)), "") for p in sorted(out)]


@cache
def _registers(path: Path) -> set[str]:
    """Names that a file gives to methods it registers beside the one it is called after: name="kl-cov"."""
    return {name.replace("-", "_") for name in re.findall(r'\bname="([a-z][\w-]*)"', path.read_text())}


def _words(node: ast.AST, only: set[str]) -> set[str]:
    """The words of all texts below a node, as names of files; those that are told to people are left out. only: keywords."""
    if only and isinstance(node, ast.keyword) and node.arg in only:
        return _words(node.value, set())
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) and not only else ""
        return {word.replace("-", "_").lower() for word in re.findall(r"[A-Za-z][\w-]*", text)}
    inner = [n for n in ast.iter_child_nodes(node) if not _is_told(n)]
    return {word for n in inner for word in _words(n, only)}


def _is_ground(path: str) -> bool:
    inside = path.removeprefix("posttrain/")
    return inside in _GROUND or inside.partition("/")[0] in _GROUND


def _counts(path: str) -> bool:
    inside = path.removeprefix("posttrain/")
    if path.startswith("claims/"):
        return not path.startswith("claims/machinery/") or path == _ARMS
    return not _is_ground(path) and inside not in _REPORTS and inside.partition("/")[0] in _FOLDERS


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def _nodes(path: str, name: str) -> list[ast.stmt]:
    """The statements that make a name; all of the file's for ""."""
    return _tree(path).body if not name else _definitions(path).get(name, [])


@cache
def _definitions(path: str) -> dict[str, list[ast.stmt]]:
    """Top-level names and the statements that bind them."""
    out: dict[str, list[ast.stmt]] = {}
    for node in _tree(path).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        else:
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in names:
            out.setdefault(name, []).append(node)
    return out


@cache
def _named(path: str, name: str) -> list[Place]:
    """What a definition names: others of its file, and imports from posttrain."""
    used, imported = set(), _imports(_tree(path).body)
    out: list[Place] = [imported[name]] if name in imported else []
    for node in _nodes(path, name):
        out += _imports([node]).values() if not isinstance(node, (ast.Import, ast.ImportFrom)) else []
        used |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    out += [(path, n) for n in used if name and n in _definitions(path)]
    return out + [imported[n] for n in used if n in imported]


def _imports(nodes: list[ast.stmt]) -> dict[str, Place]:
    """Name as used -> where it is defined, for imports from posttrain, inside functions too."""
    out: dict[str, Place] = {}
    for node in (n for top in nodes for n in ast.walk(top)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("posttrain", "claims")):
            for a in node.names:
                whole = _file(f"{node.module}.{a.name}")
                where = _file(node.module or "")
                if whole or where:
                    out[a.asname or a.name] = (whole, "") if whole else (where, a.name)
    return out


def _file(module: str) -> str:
    path = module.replace(".", "/") + ".py"
    return path if (ROOT / path).is_file() else ""


def _dump(node: object) -> str:
    """The syntax tree as text: no positions, no docstrings, no types of arguments, no empty fields (which differ between Pythons)."""
    if isinstance(node, ast.AST):
        typed = {"returns"} if not isinstance(node, ast.arg) else {"annotation", "type_comment"}
        inner = [(name, _dump(x)) for name, x in ast.iter_fields(node) if x not in (None, []) and name not in typed]
        return f"{type(node).__name__}({', '.join(f'{n}={v}' for n, v in inner)})"
    if isinstance(node, list):
        return "[" + ", ".join(_dump(x) for x in node if not _is_told(x)) + "]"
    return repr(node)


def _is_told(node: object) -> bool:
    """A docstring, or a keyword argument that holds words."""
    if isinstance(node, ast.keyword):
        return node.arg in _WORDS
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
