"""Records for people: one attempt as a table, and all claims counted: shown or not, by level, at the last and at the first attempt."""

from __future__ import annotations

from typing import Any

from claims.machinery.evidence import all_told
from claims.machinery.verdict import FLAT
from posttrain.view.claim_summary import claim_summary


def table(made: dict[str, Any]) -> str:
    """A record: each check with its difference, interval and margin, and what was said of it by an earlier rule."""
    if made["verdict"] == "failed":
        return f"{made['id']}: failed, nothing is recorded: {made['error']}"
    which = f"attempt {made['attempt']}, " if "attempt" in made else ""
    lines = [
        f"{made['id']}: {made['verdict']} ({which}{len(made['seeds'])} seeds, {made['seconds']:.0f} s of one process)"
    ]
    for c in made["checks"]:
        mark = "+" if c["shown"] else "-"
        numbers = f"{c['difference']:+.3f} [{c['low']:+.3f}, {c['high']:+.3f}]"
        if c.get("how") == FLAT:
            numbers = f"{c['difference']:+.3f} on every seed, so nothing says how it varies"
        lines.append(f"  {mark} {c['name']}: {c['metric']} {numbers}, margin {c['margin']:+g}{earlier(c)}")
    return "\n".join(lines)


def earlier(c: dict[str, Any]) -> str:
    """What the record says of a check by the rule it was made with, where that came out otherwise."""
    then = c.get("recorded")
    if not then or then["shown"] == c["shown"]:
        return ""
    return f"; recorded as {'shown' if then['shown'] else 'not shown'} by {then['how']}: [{then['low']:+.3f}, {then['high']:+.3f}]"


def summary() -> str:
    """All claims counted, from their files of attempts as they are."""
    return "\n".join(claim_summary(all_told()))
