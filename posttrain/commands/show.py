"""examples:
posttrain show grpo
posttrain show advantage/grpo
posttrain show "grpo(loss='cispo')"       a method with a change
"""

from __future__ import annotations

import argparse
import json
import sys

from posttrain.commands.parser import Parser
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError


def options(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="a method, plan, part, task or claim")
    parser.add_argument("--json", action="store_true", help='print as JSON: {"name", "page"}')
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    text, runs = page_of(args.name)
    if args.json:
        print(json.dumps({"name": args.name, "page": text}))
        return 0
    if not sys.stdout.isatty():
        print(text, end="")
        print(f"\nnext: {runs}")
        return 0
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    console.print(Markdown(text, code_theme="ansi_dark"))
    console.print(f"\nnext: [cyan]{runs}[/cyan]")
    return 0


def page_of(name: str) -> tuple[str, str]:
    """The page, and a command to try next."""
    from posttrain.view.algorithm_page import claim_page, first, page

    try:
        part = first(name.partition("/")[2] or name)
        text = page(name)
    except UserError:
        if found := task_page(name):
            return found, f"posttrain eval --task {name}"
        if found := claim_page(name):
            return found, f"posttrain check {name}"
        raise
    stage = part.card.stage if "/" not in name else name.partition("/")[0]
    if stage in ("method", "plan"):
        return text, f"posttrain run {part.name}"
    if stage.endswith("_loss") or stage in ("advantage", "aggregate", "term", "select", "shaping", "reference"):
        option = {"term": "terms"}.get(stage, "loss" if stage.endswith("_loss") else stage)
        return text, f"posttrain run grpo --{option} {part.name}"
    return text, "posttrain list"


def task_page(name: str) -> str | None:
    """A school task is one file: the file."""
    import inspect

    from posttrain.environments.school import TASKS

    module = TASKS.get(name.removeprefix("school/").replace("-", "_"))
    if module is None:
        return None
    file = "posttrain/" + (module.__file__ or "").rpartition("posttrain/")[2]
    return f"# {name}\n\n- task in `{file}`\n\n```python\n{inspect.getsource(module).rstrip()}\n```\n"
