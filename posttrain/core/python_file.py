"""Import a Python file of the user under its own name; an error in it is reported with its line."""

from __future__ import annotations

import importlib.util
import sys
import traceback
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
