"""examples:
  posttrain tools mine.py
  posttrain tools mine.py --json
  posttrain tools mine.py --call weather '{"city": "Oslo"}'
A tool is a function with type hints and a docstring, or one that comes with the package and is made in the file:
  from posttrain.tools.calculator import calculator
  from posttrain.tools.python import python; run_python = python(seconds=5)
  from posttrain.tools.sql import sql; shop = sql("shop.db")
  from posttrain.tools.search import search; find = search("documents/")
"""

from __future__ import annotations

import argparse
import json

from posttrain.commands.parser import Parser
from posttrain.core.errors import unknown
from posttrain.core.terminal import printable


def options(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="a Python file of functions")
    parser.add_argument("--json", action="store_true", help="print the schemas as a model is given them")
    parser.add_argument(
        "--call", nargs=2, metavar=("NAME", "JSON"), help="call a tool with these arguments, as a model would"
    )


def main(args: argparse.Namespace) -> int:
    from posttrain.tools.tool import tools_in

    found = {tool.name: tool for tool in tools_in(args.file)}
    if args.call:
        name, arguments = args.call
        if name not in found:
            raise unknown("tool", name, found)
        said = found[name](arguments)
        print(printable(said))
        return int(said.startswith("error:"))
    if args.json:
        print(json.dumps([tool.schema for tool in found.values()], indent=1))
        return 0
    for tool in found.values():
        needed = tool.parameters["required"]
        words = [f"{n}: {p.get('type', 'one of ' + str(p.get('enum')))}{'' if n in needed else ' = ' + repr(p.get('default'))}"
                 for n, p in tool.parameters["properties"].items()]  # fmt: skip
        print(f"{tool.name}({', '.join(words)})\n  {printable(tool.description[:300])}")
    return 0
