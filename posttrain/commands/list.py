"""examples:
  posttrain list
  posttrain list --stage loss
  posttrain list --stage task
  posttrain list --stage claim
Evidence: derived (held to values derived by hand), learns (a tabular policy improves with it), table, pocket and real (the
paper's effect in an experiment on a lookup table, the built-in model, a published model: shown or not, and at which
attempt; stale: the code has changed since).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from posttrain.commands.parser import Parser
from posttrain.commands.use import load_parts, use_option
from posttrain.core import index
from posttrain.core.errors import unknown
from posttrain.core.evidence import evidence, in_words

_SHOWN = ("id", "name", "title", "stage", "family", "paper", "paper_title", "file", "idea", "aliases")


def options(parser: Parser) -> None:
    parser.add_argument("--stage", metavar="STAGE", help="only this stage of the loop: method, plan, loss, reward, ...")
    parser.add_argument(
        "--json", action="store_true", help="print as JSON: id, name, title, stage, paper, file, evidence"
    )
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    rows = listed(args.stage)
    if args.json:
        print(json.dumps(rows, indent=1))
    else:
        show(rows)
    return 0


def listed(stage: str | None) -> list[dict[str, Any]]:
    if stage in ("task", "tasks", "environment"):
        return tasks()
    return claims() if stage in ("claim", "claims") else systems(stage)


def systems(stage: str | None = None) -> list[dict[str, Any]]:
    """A row for each part, in the order of the loop: from the index, and from new files and those of --use."""
    from posttrain.core.registry import _PARTS, STAGES, discover_new

    discover_new()
    chosen = stages_named(stage) if stage else tuple(STAGES)
    out = []
    for s in chosen:
        rows = {r["name"]: r for r in index.rows(s)} | {p.name: index.row_of(p.card) for p in _PARTS[s].values()}
        out += [line(rows[name]) for name in sorted(rows)]
    return out


def line(row: index.Row) -> dict[str, Any]:
    """What `list` and `find` give of a row."""
    return {k: row[k] for k in _SHOWN} | {"evidence": evidence(row)}


def claims() -> list[dict[str, Any]]:
    """The recorded experiments: what each paper says, and how it came out here."""
    out = []
    for id, c in index.index()["claims"].items():
        listed = index.about(id, c["paper"])
        row = {
            "id": id, "name": id, "title": c["title"], "stage": "claim", "family": c["family"], "paper": c["paper"],
            "paper_title": listed["title"], "file": c["file"], "idea": f"{c['title']}: {c['says']}",
            "aliases": listed["aliases"], "derived": [], "learns": [],
        }  # fmt: skip
        out.append(line(row))
    return out


def stages_named(word: str) -> tuple[str, ...]:
    """A stage by its own name or by what it is called: `loss` is four stages, `filter` is select."""
    from posttrain.core.registry import STAGES, fold

    name = fold(word).replace("-", "_")
    names = {name, name.removesuffix("s"), name.removesuffix("es")}
    found = [s for s, kind in STAGES.items() if {s, kind.replace(" ", "_")} & names]
    if not found:
        raise unknown("stage", word, [*STAGES, *STAGES.values(), "claim"])
    return tuple(found)


def tasks() -> list[dict[str, Any]]:
    """Every task there is a name for; what is known of it is its file's first sentence."""
    from posttrain.environments.task import names  # those of reasoning-gym are known only where it is installed

    told = {t["name"]: t["idea"] for t in index.index()["tasks"]}
    return [{"id": n, "name": n, "title": n, "stage": "environment", "idea": told.get(n, "")} for n in names()]


def heading(row: dict[str, Any]) -> str:
    """Methods and plans are listed by family, parts by stage."""
    whole = row["stage"] in ("method", "plan", "claim")
    return f"{row['stage']}: {row['family'] or 'yours'}" if whole else str(row["stage"])


def grouped(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """heading -> rows: the stages as they come, in each the base methods first and then family by family."""
    stages = list(dict.fromkeys(r["stage"] for r in rows))
    order = sorted(rows, key=lambda r: (stages.index(r["stage"]), r.get("family") != "base", heading(r)))
    out: dict[str, list[dict[str, Any]]] = {}
    for r in order:
        out.setdefault(heading(r), []).append(r)
    return out


def show(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    for head, some in grouped(rows).items():
        console.print(f"\n{head}", style="bold")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 2), expand=False)
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(ratio=1, overflow="fold")
        table.add_column(style="green")
        for r in some:
            table.add_row(r["name"], Text(r["idea"]), in_words(r["evidence"]) if "evidence" in r else "")
        console.print(table)
    console.print(f"\n{len(rows)} in all")
    if rows and "evidence" not in rows[0]:
        next_steps(console, [(f"posttrain eval --task {rows[0]['id']}", "how good is the built-in model at it?")])
    else:
        next_steps(console, [("posttrain find WORDS", "look one up"), ("posttrain show NAME", "read one on one page")])
