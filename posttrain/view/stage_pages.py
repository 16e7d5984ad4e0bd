"""docs/stages/<stage>.md from the cards: every part of a stage with its formula, parameters, laws and evidence.

python -m posttrain.view.methods_page          writes them too
"""

from __future__ import annotations

from pathlib import Path

from posttrain.core.evidence import evidence, in_words
from posttrain.core.registry import STAGES, Part, parts
from posttrain.view.methods_page import HEADINGS, PAGE, paper

FOLDER = PAGE.parent / "docs" / "stages"
_NOT_PAGES = ("claim", "environment", "method", "plan")  # claims are in METHODS.md; `posttrain show` prints a method


def stage_pages() -> dict[Path, str]:
    """The pages by file."""
    found = {s: parts(s) for s in STAGES if s not in _NOT_PAGES}
    pages = {FOLDER / f"{stage}.md": _page(stage, some) for stage, some in found.items() if some}
    rows = [f"- [{HEADINGS[p.stem]}]({p.name}), {len(found[p.stem])}" for p in pages]
    index = ["# Parts by stage", "", "Made from the cards by `make methods`; a test keeps them true.", "", *rows, ""]
    return {FOLDER / "README.md": "\n".join(index)} | pages


def _page(stage: str, some: list[Part]) -> str:
    out = [
        f"# {HEADINGS[stage]}",
        "",
        f"`--{_option(stage)} NAME`, or `NAME(parameter=value)`. Made by `make methods`.",
        "",
    ]
    for part in some:
        card = part.card
        said = ", ".join(f"`{k}={getattr(v, '__name__', None) or repr(v)}`" for k, v in part.defaults().items())
        laws = f"Laws: {', '.join(law.replace('_', ' ') for law in card.laws)}. " if card.laws else ""
        out += [f"## {card.name}", "", "```", card.doc.strip(), "```", ""]
        out += [f"{'Parameters: ' + said + '. ' if said else ''}{laws}Evidence: {in_words(evidence(card))}.", ""]
        out += [f"{paper(card) + '. ' if card.paper else ''}[{card.file}](../../{card.file})", ""]
    return "\n".join(out)


def _option(stage: str) -> str:
    """The name of the stage on the command line."""
    return {"term": "terms", "scorer": "reward"}.get(stage, "loss" if stage.endswith("_loss") else stage)
