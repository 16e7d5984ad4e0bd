"""examples:
posttrain find clip importance weight
posttrain find 2402.03300
posttrain find "learning to summarize from human feedback"
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from posttrain.commands.list import systems
from posttrain.commands.parser import Parser
from posttrain.commands.use import load_parts, use_option
from posttrain.core.errors import UserError, nearest

TEN = 10
PAPERS = Path(__file__).parent.parent / "papers.json"  # id of a system -> the title of its paper


def options(parser: Parser) -> None:
    parser.add_argument("words", nargs="+", metavar="WORDS", help="names, a paper's id or title, or words of the idea")
    parser.add_argument("--json", action="store_true", help="as JSON")
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    rows = everything()
    found = best(rows, " ".join(args.words).split())
    if not found:
        close = nearest(" ".join(args.words), {r["name"] for r in rows})
        hint = f"did you mean {close!r}?" if close else "posttrain list shows everything"
        raise UserError(f"nothing about {' '.join(args.words)!r} was found; {hint}")
    if args.json:
        print(json.dumps(found, indent=1))
    else:
        show(found)
    return 0


def everything() -> list[dict[str, Any]]:
    """Every system with the title of its paper; a study that is a claim and no part is found as its claim."""
    rows = systems()
    known = {row["id"] for row in rows}
    rows += [row for row in systems("claim") if row["id"] not in known]
    titles = json.loads(PAPERS.read_text())
    return [row | {"paper_title": titles.get(row["id"], "")} for row in rows]


def best(rows: list[dict[str, Any]], words: list[str], n: int = TEN) -> list[dict[str, Any]]:
    """The n rows with the most words in them, then with the words in the more telling places."""
    points = [sum_of(row, words) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-points[i][0], -points[i][1], i))
    return [rows[i] for i in order if points[i][0]][:n]


def sum_of(row: dict[str, Any], words: list[str]) -> tuple[int, int]:
    each = [worth(row, word.lower()) for word in words]
    return sum(w > 0 for w in each), sum(each)


def worth(row: dict[str, Any], word: str) -> int:
    """A whole name or paper 100, a piece of a name 40, a word of the title, its own or the paper's, 20, a word of the idea 5, its start 2.

    Methods come before the parts of the same name: one more point.
    """
    plain = fold(word)
    names = {fold(row["id"]), fold(row["name"]), fold(row["title"])}
    told = re.findall(r"[\w.]+", f"{row['idea']} {row.get('file', '')}".lower())
    paper = row.get("paper", "").lower()
    points = 0
    if plain in names or (paper and word.removeprefix("arxiv:") == paper.removeprefix("arxiv:")):
        points = 100
    elif len(plain) > 1 and any(plain in name for name in names):
        points = 40
    elif word in row["title"].lower().split() or word in re.findall(r"[\w-]+", row.get("paper_title", "").lower()):
        points = 20
    elif word in told:
        points = 5
    elif len(word) > 3 and any(w.startswith(word) for w in told):
        points = 2
    return points + (points > 0 and row["stage"] in ("method", "plan"))


def fold(name: str) -> str:
    """`Dr. GRPO`, `dr-grpo` and `dr_grpo` are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def show(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.text import Text

    from posttrain.core.evidence import in_words
    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    for r in found:
        console.print(Text.assemble((r["name"], "bold cyan"), f"  {r['stage']}  {r['paper']}"), soft_wrap=True)
        console.print(Text(f"  {r['idea']}"))
        console.print(Text(f"  {r['file']}; evidence: {in_words(r['evidence'])}", style="dim"), soft_wrap=True)
    top = found[0]
    steps = [(f"posttrain show {top['name']}", "read it on one page")]
    if top["stage"] in ("method", "plan"):
        steps.append((f"posttrain run {top['name']}", "train with it"))
    next_steps(console, steps)
