"""examples:
  posttrain list
  posttrain list --stage loss
  posttrain list --stage task
Evidence: formula (held to values derived by hand), learns (a tiny policy improves with it), claim (the paper's
effect in a small experiment: shown, not shown, or stale since the code changed), scale (a real model on a GPU).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from posttrain.commands.parser import Parser
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import unknown


def options(parser: Parser) -> None:
    parser.add_argument("--stage", metavar="STAGE", help="only this stage of the loop: method, plan, loss, reward, ...")
    parser.add_argument("--json", action="store_true", help="as JSON: id, name, title, stage, paper, file, evidence")
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    rows = tasks() if args.stage in ("task", "tasks", "environment") else systems(args.stage)
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)
    return 0


def systems(stage: str | None = None) -> list[dict[str, Any]]:
    """A row for each registered part, in the order of the loop; a claim is evidence, not a part."""
    from posttrain.core.registry import parts

    chosen = stages_named(stage) if stage else ()
    cards = [p.card for p in parts(*chosen)]
    return [row(c) for c in cards if c.stage != "claim" or "claim" in chosen]


def row(card: Any) -> dict[str, Any]:
    from posttrain.core.evidence import evidence, system_id

    told = card.doc.split("\n\n")[0].replace("\n", " ") or card.title
    return {
        "id": system_id(card), "name": card.name, "title": card.title, "stage": card.stage, "paper": card.paper,
        "file": card.file, "idea": told, "evidence": evidence(card),
    }  # fmt: skip


def stages_named(word: str) -> tuple[str, ...]:
    """A stage by its own name or by what it is called: `loss` is four stages, `filter` is keep."""
    from posttrain.core.registry import STAGES, fold

    name = fold(word).replace("-", "_")
    names = {name, name.removesuffix("s"), name.removesuffix("es")}
    found = [s for s, kind in STAGES.items() if {s, kind.replace(" ", "_")} & names]
    if not found:
        raise unknown("stage", word, [*STAGES, *STAGES.values()])
    return tuple(found)


def tasks() -> list[dict[str, Any]]:
    """Every task there is a name for; what is known of it is its file's first sentence."""
    from posttrain.environments.school import TASKS
    from posttrain.environments.task import names

    def told(name: str) -> str:
        doc = (TASKS[name].__doc__ or "") if name in TASKS else ""
        return doc.strip().split("\n\n")[0].replace("\n", " ")

    return [{"id": n, "name": n, "title": n, "stage": "environment", "idea": told(n)} for n in names()]


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from posttrain.core.evidence import in_words
    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    for stage in dict.fromkeys(r["stage"] for r in rows):
        console.print(f"\n{stage}", style="bold")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2), expand=False)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(ratio=1, overflow="fold")
        table.add_column(style="green")
        for r in (r for r in rows if r["stage"] == stage):
            table.add_row(r["name"], Text(r["idea"]), in_words(r["evidence"]) if "evidence" in r else "")
        console.print(table)
    console.print(f"\n{len(rows)} in all")
    if rows and "evidence" not in rows[0]:
        next_steps(console, [(f"posttrain eval --task {rows[0]['id']}", "how good is the built-in model at it?")])
    else:
        next_steps(console, [("posttrain find WORDS", "look one up"), ("posttrain show NAME", "read one on one page")])
