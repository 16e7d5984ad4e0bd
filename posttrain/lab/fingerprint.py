"""A hash of the code an experiment ran, so that a result knows when it has gone stale. Imports no torch.

It covers the claim's file and every posttrain file that it imports, directly or not, in the folders where numbers are
made. Comments, docstrings, titles and formatting do not count; a changed constant does.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FOLDERS = (
    "advantages claims decoding evals lab losses methods prompts rewards rollouts weights"
).split()  # fmt: skip
_FILES = ("train.py", "core/assemble.py", "core/rng.py")
_REPORTS = ("claim", "compare", "evidence", "fingerprint", "methods_page", "record")  # lab files that make no numbers
_WORDS = ("title", "says", "experiment", "tried", "doc", "paper")  # keyword arguments that are told, not computed with


def fingerprint(file: str) -> str:
    """Hash of the claim in `file` (relative to the project) and of what it runs."""
    digest = hashlib.sha256()
    for path in sources(file):
        digest.update(f"{path}\n{_meaning(path)}\n".encode())
    return digest.hexdigest()[:16]


def sources(file: str) -> list[str]:
    """The files whose code can change the numbers: the closure of imports, in a fixed order."""
    found, todo = set(), [file]
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += [p for p in _imports(path) if _counts(p)]
    return sorted(found)


def _counts(path: str) -> bool:
    folder, _, name = path.removeprefix("posttrain/").partition("/")
    if folder == "lab":
        return name.removesuffix(".py") not in _REPORTS
    return folder in _FOLDERS or f"{folder}/{name}".strip("/") in _FILES


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@cache
def _imports(path: str) -> tuple[str, ...]:
    """Files of posttrain that a file imports, inside functions too."""
    names = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{a.name}" for a in node.names)]
        elif isinstance(node, ast.Import):
            names += [a.name for a in node.names]
    files = [name.replace(".", "/") + ".py" for name in names if name.startswith("posttrain.")]
    return tuple(f for f in dict.fromkeys(files) if (ROOT / f).is_file())


@cache
def _meaning(path: str) -> str:
    return _dump(_tree(path))


def _dump(node: object) -> str:
    """The syntax tree as text: no positions, no docstrings, no empty fields (which differ between Pythons)."""
    if isinstance(node, ast.AST):
        inner = [(name, _dump(value)) for name, value in ast.iter_fields(node) if value not in (None, [])]
        return f"{type(node).__name__}({', '.join(f'{n}={v}' for n, v in inner)})"
    if isinstance(node, list):
        return "[" + ", ".join(_dump(x) for x in node if not _is_told(x)) + "]"
    return repr(node)


def _is_told(node: object) -> bool:
    """A docstring, or a keyword argument that holds words."""
    if isinstance(node, ast.keyword):
        return node.arg in _WORDS
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
