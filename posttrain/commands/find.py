"""examples:
posttrain find clip importance weight
posttrain find 2402.03300
posttrain find https://arxiv.org/abs/2402.03300v3
posttrain find "learning to summarize from human feedback"
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from posttrain.commands.list import claims, systems
from posttrain.commands.parser import Parser
from posttrain.commands.use import load_parts, use_option
from posttrain.core import index
from posttrain.core.errors import UserError, edits, nearest
from posttrain.core.evidence import in_words

TEN = 10
NAMED = 40  # points of a word that is at least a piece of a name
_PAPER = re.compile(r"(?:^|[/:])(\d{4}\.\d{4,5})(?:v\d+)?(?:\.pdf)?/?(?:[?#].*)?$", re.IGNORECASE)


def options(parser: Parser) -> None:
    parser.add_argument(
        "words", nargs="+", metavar="WORDS", help="names, the id, URL or title of a paper, or words of the idea"
    )
    parser.add_argument(
        "--json", action="store_true", help='print as JSON; a system that is not implemented yet has "here": false'
    )
    use_option(parser)


def main(args: argparse.Namespace) -> int:
    load_parts(args.use)
    asked = " ".join(args.words)
    found, absent, meant = search([plain(word) for word in asked.split()])
    if not found and not absent:
        raise UserError(f"nothing about {asked!r} was found; posttrain list shows everything")
    if args.json:
        print(json.dumps([r | {"here": True} for r in found] + [elsewhere(e) for e in absent], indent=1))
    else:
        show(found, absent, f"nothing is named {asked!r}; did you mean {meant!r}?" if meant else "")
    return 0


def plain(word: str) -> str:
    """A word as it was typed; of a link to a paper, its id."""
    paper = _PAPER.search(word)
    return paper[1] if paper else word


def search(words: list[str]) -> tuple[list[dict[str, Any]], list[index.Row], str]:
    """Rows that are here, published systems of that name that are not, and the name that may have been meant."""
    rows = everything()
    here = {r["id"] for r in rows} | {r["name"] for r in rows}
    absent = [e for e in index.known() if e["id"] not in here and is_called(e, words)]
    found = best(rows, words)
    if absent:
        found = [r for r in found if sum_of(r, words)[1] >= NAMED * len(words)]
    if found or absent:
        return found, absent, ""
    meant = closest(" ".join(words), rows, [e for e in index.known() if e["id"] not in here])
    return *(search(meant.split())[:2] if meant else ([], [])), meant


def closest(asked: str, rows: list[dict[str, Any]], absent: list[index.Row]) -> str:
    """The name that was perhaps meant: one that is here, unless one that is not is closer; "" when nothing is close."""
    here: dict[str, str] = {n: r["name"] for r in rows for n in (r["name"], *r["aliases"])}
    near = nearest(asked, here)
    other = nearest(asked, [n for e in absent for n in (e["name"], *e["aliases"])])
    if near and (not other or edits(asked.lower(), near.lower()) <= edits(asked.lower(), other.lower())):
        return here[near]
    return other or ""


def is_called(entry: index.Row, words: list[str]) -> bool:
    """Whether the words are, as a whole, its name, its paper's id or its title."""
    names = {fold(n) for n in (entry["id"], entry["name"], entry["title"], *entry["aliases"])}
    paper = entry["paper"].lower().removeprefix("arxiv:")
    return fold(" ".join(words)) in names or (bool(paper) and [w.lower() for w in words] == [paper])


def elsewhere(entry: index.Row) -> dict[str, Any]:
    return entry | {"here": False}


def everything() -> list[dict[str, Any]]:
    """Every part; a study that is a claim and no part is found as its claim."""
    rows = systems()
    known = {row["id"] for row in rows}
    return rows + [row for row in claims() if row["id"] not in known]


def best(rows: list[dict[str, Any]], words: list[str], n: int = TEN) -> list[dict[str, Any]]:
    """The n rows that match the most words, then those that match in more specific fields."""
    points = [sum_of(row, words) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-points[i][0], -points[i][1], i))
    return [rows[i] for i in order if points[i][0]][:n]


def sum_of(row: dict[str, Any], words: list[str]) -> tuple[int, int]:
    """How many of the words are found, and where; several words that are a name as a whole are all found in it."""
    each = [worth(row, word.lower()) for word in words]
    whole = worth(row, " ".join(words).lower()) if len(words) > 1 else 0
    if whole >= 100:
        return len(words), whole * len(words)
    return sum(w > 0 for w in each), sum(each)


def worth(row: dict[str, Any], word: str) -> int:
    """A whole name or paper 100, a piece of a name 40, a word of the title, its own or the paper's, 20, a word of the idea 5, its start 2.

    Methods come before the parts of the same name: one more point.
    """
    bare = fold(word)
    names = {fold(row["id"]), fold(row["name"]), fold(row["title"])}
    aliases = {fold(alias) for alias in row.get("aliases", ())}
    told = re.findall(r"[\w.]+", f"{row['idea']} {row.get('file', '')}".lower())
    paper = row.get("paper", "").lower()
    points = 0
    if bare and (bare in names | aliases or (paper and word.removeprefix("arxiv:") == paper.removeprefix("arxiv:"))):
        points = 100
    elif len(bare) > 1 and any(bare in name for name in names):
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


def sentence(entry: index.Row) -> str:
    """KTO (arXiv:2402.01306) is known but not here yet; nearest here: dpo"""
    paper = f" ({entry['paper']})" if entry["paper"] else ""
    near = f"; nearest here: {entry['near']}" if entry["near"] else ""
    return f"{entry['name']}{paper} is known but not here yet{near}"


def show(found: list[dict[str, Any]], absent: list[index.Row], note: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    if note:
        console.print(Text(note), soft_wrap=True)
    for entry in absent:
        console.print(Text(sentence(entry)), soft_wrap=True)
    for r in found:
        console.print(Text.assemble((r["name"], "bold cyan"), f"  {r['stage']}  {r['paper']}"), soft_wrap=True)
        console.print(Text(f"  {r['idea']}"))
        console.print(Text(f"  {r['file']}; evidence: {in_words(r['evidence'])}", style="dim"), soft_wrap=True)
    next_steps(console, steps(found, absent))


def steps(found: list[dict[str, Any]], absent: list[index.Row]) -> list[tuple[str, str]]:
    """What to type after reading the first result, or the nearest to what is not here."""
    if not found:
        near = absent[0]["near"]
        return [(f"posttrain show {near}", "read it on one page")] if near else [("posttrain list", "what is here")]
    top = found[0]
    out = [(f"posttrain show {top['name']}", "read it on one page")]
    if top["stage"] in ("method", "plan"):
        out.append((f"posttrain run {top['name']}", "train with it"))
    return out
