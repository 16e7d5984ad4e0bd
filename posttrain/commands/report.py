"""examples:
  posttrain report grpo-arithmetic                       what its monitors have found, in the terminal
  posttrain report grpo-arithmetic --to report.html      the page of the run as one file, to send to somebody
  posttrain report runs/grpo-arithmetic --json
The file holds settings, curves, events and up to 200 answers with their tokens; it needs no server and no network.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser
from posttrain.commands.view import where
from posttrain.core.errors import UserError
from posttrain.core.terminal import printable


def options(parser: Parser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run by name, or its folder")
    parser.add_argument("--to", metavar="FILE", help="write the page of the run to this file, as HTML")
    parser.add_argument("--force", action="store_true", help="replace the file if there is one")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument(
        "--json", action="store_true", help="print settings, events, held-out points and warnings as JSON"
    )


def main(args: argparse.Namespace) -> int:
    from posttrain.page.api import answer
    from posttrain.page.folder import Folder

    folder = Folder(where(args.name, args.runs))
    found = folder.runs()
    if not (folder.root / "run.sqlite").exists() or len(found) != 1:
        raise UserError(
            f"{folder.root} holds {len(found)} runs; name one of them, or look at all: posttrain view {folder.root}"
        )
    name = found[0].name
    if args.to:
        return write(folder, name, Path(args.to), args.force)
    about = answer(folder, "run", {"run": name})
    if args.json:
        print(json.dumps(about))
    else:
        show(about)
    return 0


def write(folder: Any, name: str, to: Path, force: bool) -> int:
    from posttrain.page.report import report

    if to.is_dir():
        raise UserError(f"--to {to} is a folder; give a file: --to {to / 'report.html'}")
    if to.exists() and not force:
        raise UserError(f"{to} is there already; name another file, or add --force to replace it")
    if not to.parent.is_dir():
        raise UserError(f"--to {to}: there is no folder {to.parent}")
    text = report(folder, name)
    to.write_text(text, encoding="utf-8")
    print(printable(f"{to}: {len(text.encode()) / 1e6:.1f} MB, open it in a browser"))
    return 0


def show(about: dict[str, Any]) -> None:
    """How it stands, and what the monitors have found, for a terminal."""
    run = about["run"]
    print(
        printable(
            f"{run['name']}: {run['method']} on {run['task']} with {run['model']}, {run['state']} after {run['step']} steps"
        )
    )
    for point in (about["held_out"] or {"points": []})["points"]:
        between = f" ({point['low']:.3g} to {point['high']:.3g})" if point["low"] is not None else ""
        print(f"  held-out {about['held_out']['name']} at step {point['step']}: {point['value']:.3g}{between}")
    for lost in about["unscored"]:
        why = f" ({lost['phase']}: {lost['why']})" if lost["why"] else ""
        print(printable(f"warning: {lost['failed']} of {lost['made']} answers could not be scored{why}", one_line=True))
    for warning in about["warnings"]:
        phase = f"{warning['phase']}, " if len(about["phases"]) > 1 else ""
        print(
            printable(
                f"warning: {warning['says']} ({phase}steps {warning['first']} to {warning['last']})", one_line=True
            )
        )
    if not about["warnings"] and not about["unscored"]:
        print("no monitor has found anything")
