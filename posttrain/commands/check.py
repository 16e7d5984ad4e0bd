"""examples:
  posttrain check dpo
  posttrain check lite-ppo reft --jobs 16 --device cuda       arms and seeds side by side; killed, the same command goes on
  posttrain check lite-ppo --no-write --seeds 100-101         a trial: other seeds, nothing is recorded
  posttrain check lite-ppo --seeds 60-63 --work part          a part of the seeds, on this machine; then, where the history is:
  posttrain check lite-ppo --merge part                       recorded once all seeds are there
  posttrain check --summary                                   all claims counted
  posttrain check --outdated
  posttrain check --all --confirm --jobs 2    after a move of code: one seed of each, to the last digit
Each claim has a small experiment that could refute it. The result is recorded beside the claim whether or not it was shown, as one more
attempt, if the claim is committed as it is and its seeds are new. Exit code 1 if a claim is not shown.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import posttrain
from posttrain.commands.parser import Parser, whole
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError


def claims_module(name: str) -> Any:
    """A module of the experiments, which live beside the package: they need a checkout, and so do the processes that run them."""
    root = str(Path(posttrain.__file__).parent.parent)
    if root not in sys.path:
        sys.path.append(root)
    try:
        return import_module(f"claims.machinery.{name}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("claims"):
            raise
        raise UserError(
            "experiments are not part of the installed package; clone the repository and run posttrain check there"
        ) from None


def options(parser: Parser) -> None:
    parser.add_argument("ids", nargs="*", metavar="CLAIM", help="claims by id: see posttrain list --stage claim")
    parser.add_argument("--family", metavar="NAME", help="all claims of a family")
    parser.add_argument("--all", action="store_true", help="all claims")
    parser.add_argument("--summary", action="store_true", help="count what was shown and what not, and run nothing")
    parser.add_argument(
        "--outdated",
        action="store_true",
        help="only those whose code, or the trainer under it, changed since the recorded result",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="after code was moved: only the first seed, which must give the recorded digits",
    )
    parser.add_argument("--jobs", type=whole, default=1, metavar="N", help="runs side by side, a process each [1]")
    parser.add_argument("--device", default="", help="cuda or cpu, for arms that train language models [cpu]")
    parser.add_argument("--seeds", default="", metavar="0-5", help="only these; with --no-write any others")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where finished runs are kept [runs/checks]")
    parser.add_argument(
        "--merge", type=Path, metavar="FOLDER", help="add the finished runs of another work folder; run nothing"
    )
    parser.add_argument("--no-write", action="store_true", help="a trial: do not record the result")
    parser.add_argument("--json", action="store_true", help="print the records as JSON and nothing else")
    use_option(parser)


def confirm(ids: list[str], jobs: int, write: bool) -> int:
    """One line per claim: the recorded digits again, or where they differ."""
    wrong = 0
    for id, differs in claims_module("confirm").confirm(ids, jobs, write):
        print(f"{id:32} {'confirmed' if not differs else 'DIFFERS: ' + '; '.join(differs[:3])}", flush=True)
        wrong += bool(differs)
    return 1 if wrong else 0


def how(args: argparse.Namespace) -> Any:
    """What was asked, as the experiments take it."""
    runner, tell = claims_module("runner"), None if args.json else lambda line: print(line, file=sys.stderr, flush=True)
    seeds = tuple(runner.seeds_from(args.seeds)) if args.seeds else None
    work = args.work or (runner.WORK / "trials" if args.no_write else runner.WORK)
    if args.device and not args.device.startswith(("cuda", "cpu")):
        raise UserError(f"--device is {args.device!r}; give cuda or cpu")
    return claims_module("record").How(
        not args.no_write, args.jobs, args.device or "cpu", seeds, work, args.merge, outdated=args.outdated, tell=tell
    )


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    if args.summary:
        print(claims_module("summary").summary())
        return 0
    if not (args.ids or args.family or args.all or args.outdated):
        raise UserError("say which claims: ids, --family NAME or --all; posttrain list --stage claim shows them")
    if args.confirm:
        return confirm(args.ids, args.jobs, not args.no_write)
    records = claims_module("record").check(args.ids, args.family, how(args))
    if args.json:
        print(json.dumps(records))
    else:
        print("\n".join(claims_module("summary").table(made) for made in records))
        if any("attempt" in made for made in records):
            print("\nrecorded beside the claims; `make pages` puts it into the index and the pages")
        print(f"\nnext: posttrain find {records[0]['id']}" if records else "\nnothing to tell: no claim was complete")
    return 0 if all(made["verdict"] == "shown" for made in records) else 1
