"""What the files of a task hold, as short hashes: a run that is resumed with other contents is told apart."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.identity import code_hash
from posttrain.core.python_file import helpers
from posttrain.core.registry import parse, split_sum
from posttrain.environments.rows import FORMATS

_PYTHON = re.compile(r"([^\s+*('\"]+\.py):")
_WORD = re.compile(r"[^\s+*()'\":,=]+")  # of an option: what may be a file
_LARGE = 1 << 31  # bytes: of a larger file its length, beginning and end are compared


def contents(task: str) -> dict[str, str]:
    """file -> hash of what is in it, for every file that a task names, and modules that a Python file imports from its folder; comments in
    Python do not count."""
    files = [f for piece in split_sum(task) for f in _files(piece)]
    files += [f for hit in _PYTHON.findall(task) for f in (Path(hit), *helpers(Path(hit)))]
    return {str(f): file_hash(f) for f in dict.fromkeys(files) if f.is_file()}


def mentioned(text: str) -> dict[str, str]:
    """file -> hash of what is in it, for every data or Python file that an option names, be it in a sum or with a function."""
    words = [Path(word) for word in (text, *_WORD.findall(text))]
    files = [f for f in words if _is_file(str(f)) or (f.suffix == ".py" and f.is_file())]
    files += [f for file in files if file.suffix == ".py" for f in helpers(file)]
    return {str(f): file_hash(f) for f in dict.fromkeys(files)}


def _files(spec: str) -> list[Path]:
    """The data files of a task: the file, those of the folder, those that its options name."""
    try:
        name, options = parse(spec) if spec.strip().endswith(")") else (spec.strip(), {})
    except UserError:
        return []
    path = Path(name)
    if path.is_dir():
        found = [] if (path / "run.sqlite").exists() else sorted(path.iterdir())
        found = [f for f in found if f.is_file() and any(e in f.name for e in FORMATS)]
    else:
        found = [path] if any(e in path.name for e in FORMATS) else []
    return found + [Path(v) for v in options.values() if _is_file(v)]


def _is_file(value: Any) -> bool:
    return isinstance(value, str) and any(e in value for e in FORMATS) and Path(value).is_file()


def file_hash(path: Path) -> str:
    """sha256 of what a file holds, the first ten digits; of a Python file, of its compiled code."""
    if path.suffix == ".py":
        try:
            return code_hash(compile(path.read_bytes(), path.name, "exec"))
        except (SyntaxError, ValueError):
            pass  # importing it says what is wrong
    digest, size = hashlib.sha256(), path.stat().st_size
    with path.open("rb") as file:
        if size > _LARGE:
            digest.update(str(size).encode() + file.read(1 << 20))
            file.seek(-(1 << 20), 2)
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()[:10]
