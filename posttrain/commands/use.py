"""`--use my_parts.py`: a file of the user's whose parts, methods and plans become known by name."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from posttrain.commands.parser import Parser
from posttrain.core.errors import UserError


def use_option(parser: Parser) -> None:
    parser.add_argument(
        "--use", action="append", default=[], metavar="FILE", help="a Python file of yours with more parts or methods"
    )


def load_parts(files: list[str]) -> None:
    """Import each file under its own name; a mistake in it is told with its line."""
    for file in files:
        path = Path(file)
        if not path.is_file():
            raise UserError(f"--use {file}: there is no such file")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise UserError(f"--use {file}: not a Python file; its name must end in .py")
        if spec.name in sys.modules and getattr(sys.modules[spec.name], "__file__", None) != str(path):
            raise UserError(f"--use {file}: a module named {spec.name!r} is loaded already; rename the file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except UserError:
            raise
        except Exception as error:
            where = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == spec.origin]
            line = f" line {where[-1].lineno}" if where else f" line {getattr(error, 'lineno', '?')}"
            raise UserError(f"{file}{line}: {type(error).__name__}: {error}") from error
