"""`--use my_parts.py`: import a file of the user, so that its parts, methods and plans can be used by name."""

from __future__ import annotations

from posttrain.commands.parser import Parser
from posttrain.core.python_file import import_file


def use_option(parser: Parser) -> None:
    parser.add_argument(
        "--use",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file of yours that registers more parts or methods",
    )


def load_parts(files: list[str]) -> None:
    """Import each file under its own name."""
    for file in files:
        import_file(file, f"--use {file}")
