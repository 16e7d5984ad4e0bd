"""Import a Python file of the user under its own name; an error in it is reported with its line. And what it imports from its folder."""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

from posttrain.core.errors import UserError


def import_file(file: str, asked: str) -> ModuleType:
    """The module a file holds, run afresh; `asked` is what was typed, for the error."""
    path = Path(file)
    if not path.is_file() or "\0" in file:
        raise UserError(f"{asked}: there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{asked}: not a Python file; its name must end in .py")
    loaded = getattr(sys.modules.get(spec.name), "__file__", "")
    if spec.name in sys.modules and (loaded is None or Path(loaded).resolve() != path.resolve()):
        raise UserError(f"{asked}: a module named {spec.name!r} is loaded already; rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with redirect_stdout(sys.stderr):  # stdout may have been promised to JSON
            spec.loader.exec_module(module)
    except UserError:
        sys.modules.pop(spec.name, None)
        raise
    except (Exception, SystemExit) as error:
        sys.modules.pop(spec.name, None)
        where = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin]
        line = f" line {where[-1].lineno}" if where else f" line {getattr(error, 'lineno', '?')}"
        raise UserError(f"{file}{line}: {type(error).__name__}: {error}") from error
    return module


def helpers(file: Path) -> list[Path]:
    """The modules of its own folder that a Python file imports, directly or through another; itself left out."""
    found: dict[Path, None] = {}
    todo = [file]
    while todo:
        one = todo.pop(0)
        for path in _imported(one, file.parent):
            if path not in found and path != file:
                found[path] = None
                todo.append(path)
    return list(found)


def _imported(file: Path, root: Path) -> Iterator[Path]:
    """Files under `root` that one file imports, the packages on the way too; what cannot be read imports nothing."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _modules(root, name.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = file.parent if node.level else root
            for _ in range(node.level - 1):
                base = base.parent
            words = node.module.split(".") if node.module else []
            for name in node.names:
                yield from _modules(base, [*words, name.name])


def _modules(base: Path, words: list[str]) -> Iterator[Path]:
    for word in words:
        for path in (base / f"{word}.py", base / word / "__init__.py"):
            if path.is_file():
                yield path
        base = base / word
