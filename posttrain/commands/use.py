"""`--use my_parts.py`: a file of the user's whose parts, methods and plans become known by name."""

from __future__ import annotations

from posttrain.commands.parser import Parser
from posttrain.core.python_file import import_file


def use_option(parser: Parser) -> None:
    parser.add_argument(
        "--use", action="append", default=[], metavar="FILE", help="a Python file of yours with more parts or methods"
    )


def load_parts(files: list[str]) -> None:
    """Import each file under its own name."""
    for file in files:
        import_file(file, f"--use {file}")
