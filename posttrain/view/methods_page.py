"""METHODS.md from the cards: every method, plan, claim and part with its paper, file and evidence.

python -m posttrain.view.methods_page          write it, and docs/stages
"""

from __future__ import annotations

import json
from pathlib import Path

from posttrain.core.evidence import SCALE, evidence, in_words
from posttrain.core.registry import STAGES, Card, parts

PAGE = Path(__file__).parent.parent.parent / "METHODS.md"
HEADINGS = {
    "plan": "Plans", "method": "Methods", "claim": "Claims", "prompts": "Prompts", "rollout": "Rollouts", "reward": "Rewards",
    "scorer": "Scorers",
    "shaping": "Reward shaping", "keep": "Filters", "advantage": "Advantages", "policy_loss": "Policy losses",
    "preference_loss": "Preference losses", "supervised_loss": "Supervised losses", "reward_model_loss": "Reward-model losses",
    "term": "Terms", "aggregate": "Aggregation", "optimiser": "Optimisers", "reference": "References", "decoding": "Decoding",
    "eval": "Evals", "environment": "Environments",
}  # fmt: skip
_FIRST = ("plan", "method", "claim")


def page() -> str:
    """The whole page."""
    out = [
        "# Methods", "",
        "Made from the cards by `make methods`; a test keeps it true. Evidence: `formula` (a table derived by hand passes),",
        "`learns` (a tiny policy improves), `claim` (the paper's effect in a small controlled experiment: shown, not shown, or stale",
        "when the code has changed since), `scale` (a run with a real model). `posttrain show <id>` prints a whole algorithm.", "",
    ]  # fmt: skip
    for stage in (*_FIRST, *(s for s in STAGES if s not in _FIRST)):
        found = parts(stage)
        if found:
            out += [f"## {HEADINGS[stage]}", "", *_table(stage, [p.card for p in found]), ""]
        if stage == "claim":
            out += [*_scale(), ""]
    return "\n".join(out)


def _scale() -> list[str]:
    """What came out with a real model, good or bad; curves are in the files."""
    out = ["### With a real model", "", "| id | model and task | found | file |", "|---|---|---|---|"]
    for path in sorted(SCALE.glob("*.json")):
        made = json.loads(path.read_text())
        where = f"{made['model']}, {made['task']}, {made['samples']:,} answers"
        out.append(f"| `{made['id']}` | {where} | {made['found']} | [{path.name}](claims/scale/{path.name}) |")
    return out


def _table(stage: str, cards: list[Card]) -> list[str]:
    if stage == "claim":
        return ["| id | says | result | file |", "|---|---|---|---|", *map(_claim_row, cards)]
    head = ["| id | idea | paper | evidence | file |", "|---|---|---|---|---|"]
    return head + [_row(card) for card in cards]


def _row(card: Card) -> str:
    idea = card.doc.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
    return f"| `{card.name}` | {idea} | {paper(card)} | {in_words(evidence(card))} | [{_short(card)}]({card.file}) |"


def _claim_row(card: Card) -> str:
    path = SCALE.parent / "results" / f"{card.system}.json"
    made = json.loads(path.read_text()) if path.is_file() else None
    level = evidence(card)["claim"]
    told = level if made is None else f"{level}: " + "; ".join(_check(c) for c in made["checks"])
    says = card.doc.split("\n\n")[0].replace("|", "\\|")
    return f"| `{card.name}` | {says} ({paper(card)}) | {told} | [{_short(card)}]({card.file}) |"


def _check(c: dict[str, object]) -> str:
    mark = "" if c["shown"] else "**not shown** "
    return f"{mark}{c['name']} {c['difference']:+.3g} [{c['low']:+.3g}, {c['high']:+.3g}]"


def paper(card: Card) -> str:
    if card.paper.startswith("arXiv:"):
        return f"[{card.paper}](https://arxiv.org/abs/{card.paper.removeprefix('arXiv:')})"
    return card.paper


def _short(card: Card) -> str:
    return card.file.removeprefix("posttrain/")


def main() -> None:
    from posttrain.view.stage_pages import FOLDER, stage_pages

    FOLDER.mkdir(parents=True, exist_ok=True)
    pages = {PAGE: page()} | stage_pages()
    for old in set(FOLDER.glob("*.md")) - set(pages):
        old.unlink()
    for file, text in pages.items():
        file.write_text(text)
    print(f"wrote {PAGE.name} and {len(pages) - 1} pages in docs/stages")


if __name__ == "__main__":
    main()
