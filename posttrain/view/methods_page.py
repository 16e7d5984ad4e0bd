"""METHODS.md from the index: every system by family, one line each, with its paper, evidence and page.

python -m posttrain.view.methods_page          write it, docs/stages and docs/systems (`make pages` makes the index first)
"""

from __future__ import annotations

from pathlib import Path

from posttrain.core.evidence import evidence, in_words
from posttrain.core.index import PACKAGE, Row, index, rows
from posttrain.view.claim_summary import claim_summary

PAGE = PACKAGE.parent / "METHODS.md"
HEADINGS = {
    "plan": "Plans", "method": "Methods", "prompts": "Prompts", "rollout": "Rollouts", "reward": "Rewards", "scorer": "Scorers",
    "shaping": "Reward shaping", "select": "Selection", "advantage": "Advantages", "policy_loss": "Policy losses",
    "preference_loss": "Preference losses", "supervised_loss": "Supervised losses", "reward_model_loss": "Reward-model losses",
    "term": "Terms", "aggregate": "Aggregation", "optimiser": "Optimisers", "reference": "References", "decoding": "Decoding",
    "eval": "Evals", "environment": "Environments",
}  # fmt: skip

RULE = (
    "A check is shown when the interval of its difference over paired seeds (Student t, 99.5%) lies above its margin: at most 3% false",
    "`shown` at the margin for 5 to 20 seeds, on skewed bounded values too (`tests/evals/test_paired_coverage.py`). Figures that are exact",
    "must lie above it on every seed; sampled ones that are equal on all seeds show nothing. Verdicts are computed on reading from the",
    "values of each seed, so all attempts are held to this rule; [docs/claims.md](docs/claims.md) says how claims are made and recorded.",
)


def page() -> str:
    """The whole page."""
    out = [
        "# Methods", "",
        "Every system by family, one line each; a name leads to its page. Made by `make pages`; a test keeps it true. Evidence:",
        "`derived` (values and gradients derived by hand), `learns` (a tabular policy improves), and the paper's effect in a",
        "controlled experiment on a lookup table (`table`), the built-in language model (`pocket`) or a published one (`real`): shown",
        "or not, and at which attempt; `stale` when the code has changed since. `posttrain show NAME` prints a whole algorithm;",
        "parts are in [docs/stages](docs/stages/README.md).", "",
    ]  # fmt: skip
    out += ["## Claims counted", "", *claim_summary(index()["claims"]), "", *RULE, ""]
    for family, some in families().items():
        out += [
            f"## {family.replace('-', ' ').capitalize()}",
            "",
            "| name | idea | paper | evidence |",
            "|---|---|---|---|",
        ]
        out += [*(_line(row) for row in some), ""]
    return "\n".join(out)


def families() -> dict[str, list[Row]]:
    """Family -> its systems by name, the base first."""
    every = sorted(systems(), key=lambda r: (r["family"] != "base", r["family"], r["name"]))
    return {f: [r for r in every if r["family"] == f] for f in dict.fromkeys(r["family"] for r in every)}


def systems() -> list[Row]:
    """Every method and plan, and every claim about a system that is neither: a study, or a part alone."""
    whole = rows("method", "plan")
    known = {r["id"] for r in whole}
    return whole + [study(c) for id, c in index()["claims"].items() if id not in known]


def study(claim: Row) -> Row:
    """A claim about no method or plan, as a row; a part of its name lends it its tests."""
    lent = [r for r in rows() if r["id"] == claim["id"]]
    departures = f"\n\nDepartures: {claim['departures']}" if claim["departures"] else ""
    return {
        "name": claim["id"], "id": claim["id"], "stage": "claim", "title": claim["title"], "paper": claim["paper"],
        "family": claim["family"], "file": claim["file"], "idea": f"{claim['title']}: {claim['says']}", "doc": claim["says"] + departures,
        "parts": [], "derived": [t for r in lent for t in r["derived"]], "learns": [t for r in lent for t in r["learns"]],
    }  # fmt: skip


def page_of(row: Row) -> str:
    """A system's page, relative to the project."""
    return f"docs/systems/{row['family']}/{row['name']}.md"


def _line(row: Row) -> str:
    idea = row["idea"].replace("|", "\\|")
    return f"| [{row['name']}]({page_of(row)}) | {idea} | {paper(row)} | {in_words(evidence(row))} |"


def paper(row: Row) -> str:
    if row["paper"].startswith("arXiv:"):
        return f"[{row['paper']}](https://arxiv.org/abs/{row['paper'].removeprefix('arXiv:')})"
    return str(row["paper"])


def every_page() -> dict[Path, str]:
    """File -> what it should hold."""
    from posttrain.view.objective_page import objective_page
    from posttrain.view.stage_pages import stage_pages
    from posttrain.view.system_pages import system_pages

    return {PAGE: page()} | objective_page() | stage_pages() | system_pages()


def left_over() -> set[Path]:
    """Pages on the disk that nothing makes any more."""
    docs = PAGE.parent / "docs"
    return {*(docs / "stages").glob("*.md"), *(docs / "systems").rglob("*.md")} - set(every_page())


def main() -> None:
    for old in left_over():
        old.unlink()
    pages = every_page()
    for file, text in pages.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    print(f"wrote {PAGE.name} and {len(pages) - 1} pages in docs")


if __name__ == "__main__":
    main()
