"""examples:
  posttrain view                          every run in runs/
  posttrain view grpo-arithmetic          one run
  posttrain view path/to/runs --port 9000 --open
  posttrain view --chat grpo-arithmetic --chat pocket     and chat with two models side by side
  POSTTRAIN_API_KEY=secret posttrain view --host 0.0.0.0
The page shows runs while they train: curves, warnings, answers down to the token. It changes nothing. Ctrl-C closes it.
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
    parser.add_argument(
        "--chat", action="append", default=[], metavar="RUN",
        help="chat with this run, or model, on the page; give it twice for two side by side [none]",
    )  # fmt: skip
    parser.add_argument("--open", action="store_true", help="open the page in your browser")


def main(args: argparse.Namespace) -> int:
    if args.port is not None and not 0 <= args.port < 1 << 16:
        raise UserError(f"--port is {args.port}; it must be 0 to 65535")
    if len(args.chat) > 2 or len(set(args.chat)) < len(args.chat):
        raise UserError(f"--chat is given for {', '.join(args.chat)}; give one run, or two that differ")
    from posttrain.page.server import require_key

    key = args.api_key if args.api_key is not None else os.environ.get(VARIABLE, "")
    require_key(args.host, key)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        show(args, key)
    except KeyboardInterrupt:
        print("\nclosed", file=sys.stderr)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def show(args: argparse.Namespace, key: str) -> None:
    """The page until it is closed, with the servers of the models to chat with."""
    from posttrain.page.chat import Chat
    from posttrain.page.child import serving
    from posttrain.page.folder import Folder
    from posttrain.page.server import Page

    folder = Folder(where(args.name, args.runs))
    if args.chat:
        tell(f"loading {' and '.join(args.chat)}")
    with serving(args.chat, str(folder.above), tell) as models:
        page = Page(folder, args.host, args.port, key, Chat(models) if models else None)
        tell(f"{page.url}  (Ctrl-C closes it)")
        if args.open:
            webbrowser.open(page.url)
        page.run()


def tell(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


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
