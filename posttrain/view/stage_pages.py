"""docs/stages/<stage>.md from the index: every part of a stage with its formula, parameters, laws and evidence.

python -m posttrain.view.methods_page          writes them too
"""

from __future__ import annotations

from pathlib import Path

from posttrain.core.evidence import evidence, in_words
from posttrain.core.index import Row, rows
from posttrain.core.registry import STAGES
from posttrain.view.methods_page import HEADINGS, PAGE, paper

FOLDER = PAGE.parent / "docs" / "stages"
_NOT_PAGES = ("environment", "method", "plan")  # methods and plans have pages in docs/systems


def stage_pages() -> dict[Path, str]:
    """The pages by file."""
    found = {s: rows(s) for s in STAGES if s not in _NOT_PAGES}
    pages = {FOLDER / f"{stage}.md": _page(stage, some) for stage, some in found.items() if some}
    lines = [f"- [{HEADINGS[p.stem]}]({p.name}), {len(found[p.stem])}" for p in pages]
    index = ["# Parts by stage", "", "Made from the index by `make pages`; a test keeps them true.", "", *lines, ""]
    return {FOLDER / "README.md": "\n".join(index)} | pages


def _page(stage: str, some: list[Row]) -> str:
    how = f"`--{option(stage)} NAME`, or `NAME(parameter=value)`. " if option(stage) else ""
    out = [
        f"# {HEADINGS[stage]}",
        "",
        f"{how}Made by `make pages`.",
        "",
    ]
    for row in some:
        said = ", ".join(f"`{k}={v}`" for k, v in row["parameters"].items())
        laws = f"Laws: {', '.join(law.replace('_', ' ') for law in row['laws'])}. " if row["laws"] else ""
        out += [f"## {row['name']}", "", "```", row["doc"].strip(), "```", ""]
        out += [f"{'Parameters: ' + said + '. ' if said else ''}{laws}Evidence: {in_words(evidence(row))}.", ""]
        out += [f"{paper(row) + '. ' if row['paper'] else ''}[{row['file']}](../../{row['file']})", ""]
    return "\n".join(out)


def option(stage: str) -> str:
    """The option of `posttrain run` that takes parts of this stage; "" for parts that only Python uses."""
    return {"prompts": "curriculum", "term": "terms", "scorer": "reward", "decoding": "", "eval": ""}.get(
        stage, "loss" if stage.endswith("_loss") else stage
    )
