"""examples:
  posttrain view                          every run in runs/
  posttrain view grpo-arithmetic          one run
  posttrain view path/to/runs --port 9000 --open
  POSTTRAIN_API_KEY=secret posttrain view --host 0.0.0.0
The page shows runs while they train: curves, warnings, answers down to the token. It reads and changes nothing. Ctrl-C closes it.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import webbrowser
from pathlib import Path

from posttrain.commands.parser import Parser, whole
from posttrain.core.errors import UserError, unknown
from posttrain.core.terminal import printable

VARIABLE = "POSTTRAIN_API_KEY"


def options(parser: Parser) -> None:
    parser.add_argument("name", nargs="?", metavar="[RUNS]", help="a folder of runs, or a run by name or folder [runs]")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument(
        "--port", type=whole, metavar="N", help="port to listen on; 0 takes any free one [8765, or a free one if taken]"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", metavar="TEXT", help="address to listen on [127.0.0.1: this machine only]"
    )
    parser.add_argument(
        "--api-key", metavar="KEY", help=f"key that visitors need; required with other hosts [{VARIABLE}]"
    )
    parser.add_argument("--open", action="store_true", help="open the page in your browser")


def main(args: argparse.Namespace) -> int:
    if args.port is not None and not 0 <= args.port < 1 << 16:
        raise UserError(f"--port is {args.port}; it must be 0 to 65535")
    from posttrain.page.folder import Folder
    from posttrain.page.server import Page, require_key

    key = args.api_key if args.api_key is not None else os.environ.get(VARIABLE, "")
    require_key(args.host, key)
    page = Page(Folder(where(args.name, args.runs)), args.host, args.port, key)
    print(printable(f"{page.url}  (Ctrl-C closes it)"), file=sys.stderr, flush=True)
    if args.open:
        webbrowser.open(page.url)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        page.run()
    except KeyboardInterrupt:
        print("\nclosed", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def where(name: str | None, runs: str) -> Path:
    """A folder of runs, or a run: by its path, or by its name in the folder of all runs."""
    if name is None:
        if not Path(runs).is_dir():
            raise UserError(f"there is no folder {runs} here; name one, or start a run: posttrain run grpo")
        return Path(runs)
    for folder in (Path(runs) / name, Path(name)):
        if folder.is_dir():
            return folder
    there = sorted(p.parent.name for p in Path(runs).glob("*/run.sqlite"))
    raise unknown("run or folder", name, there)
