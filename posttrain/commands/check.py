"""examples:
  posttrain check dpo
  posttrain check --family preference
  posttrain check --outdated
Each claim has a small experiment that could refute it. The result is recorded beside the claim whether or not it was shown,
as a new attempt if the numbers are new. Exit code 1 if a claim is not shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import posttrain
from posttrain.commands.parser import Parser
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError


def claims_module(name: str) -> Any:
    """A module of the experiments, which live beside the package: they need a checkout."""
    root = str(Path(posttrain.__file__).parent.parent)
    try:
        sys.path.insert(0, root)
        return import_module(f"claims.machinery.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("claims"):
            raise
        raise UserError(
            "experiments are not part of the installed package; clone the repository and run posttrain check there"
        ) from None
    finally:
        sys.path.remove(root)


def options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="CLAIM", help="claims by id: see posttrain list --stage claim")
    parser.add_argument("--family", metavar="NAME", help="all claims of a family")
    parser.add_argument("--all", action="store_true", help="all claims")
    parser.add_argument(
        "--outdated",
        action="store_true",
        help="only those whose code, or the trainer under it, changed since the recorded result",
    )
    parser.add_argument("--no-write", action="store_true", help="do not record the result")
    parser.add_argument("--json", action="store_true", help="print the records as JSON and nothing else")
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    if not (args.ids or args.family or args.all or args.outdated):
        raise UserError("say which claims: ids, --family NAME or --all; posttrain list --stage claim shows them")
    record = claims_module("record")
    check, table = record.check, record.table

    tell = None if args.json else lambda line: print(line, file=sys.stderr)
    records = check(args.ids, args.family, write=not args.no_write, tell=tell, outdated=args.outdated)
    if args.json:
        print(json.dumps(records))
    else:
        print("\n".join(table(made) for made in records))
        if records and not args.no_write:
            print("\nrecorded beside the claims; `make pages` puts it into the index and the pages")
        print(f"\nnext: posttrain find {records[0]['id']}" if records else "\nnothing to do")
    return 0 if all(made["verdict"] == "shown" for made in records) else 1
