"""Records for people: one attempt as a table, and all claims counted: shown or not, by level, at the last and at the first attempt."""

from __future__ import annotations

from collections import Counter
from typing import Any

from claims.machinery.claim import LEVELS, claims
from claims.machinery.evidence import is_stale, is_waiting, judged_attempts
from claims.machinery.verdict import FLAT


def table(made: dict[str, Any]) -> str:
    """A record: each check with its difference, interval and margin, and what was said of it by an earlier rule."""
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


def counted() -> dict[str, Any]:
    """Every claim once: verdicts by level, at the last and the first attempt, those that another rule had called shown, those not run."""
    last: Counter[tuple[str, str]] = Counter()
    first: Counter[tuple[str, str]] = Counter()
    changed, waiting, stale = [], [], 0
    for c in claims():
        made = judged_attempts(c)
        if is_waiting(c):
            waiting.append(c.id)
        if not made:
            continue
        last[made[-1]["level"], made[-1]["verdict"]] += 1
        first[made[0]["level"], made[0]["verdict"]] += 1
        stale += is_stale(c)
        if "recorded_verdict" in made[-1]:
            changed.append(c.id)
    return {"last": last, "first": first, "changed": changed, "waiting": waiting, "stale": stale}


def summary() -> str:
    """All claims counted, as the lines of a table."""
    found = counted()
    out = ["| level | shown | not shown | shown at the first attempt |", "|---|---|---|---|"]
    for level in LEVELS:
        shown, other = (found["last"][level, v] for v in ("shown", "not shown"))
        begun = sum(found["first"][level, v] for v in ("shown", "not shown"))
        if shown + other or begun:
            out.append(f"| {level} | {shown} | {other} | {found['first'][level, 'shown']} of {begun} |")
    shown, every = (
        sum(n for (_, v), n in found["last"].items() if v in which) for which in (("shown",), ("shown", "not shown"))
    )
    at_first = sum(n for (_, v), n in found["first"].items() if v == "shown")
    out += [
        "",
        f"{every} claims were run: {shown} shown, {every - shown} not; at the first attempt {at_first} of {every}.",
    ]
    if found["changed"]:
        out.append(
            f"Of these {len(found['changed'])} were recorded otherwise by an earlier rule for intervals: {', '.join(found['changed'])}."
        )
    if found["waiting"]:
        out.append(f"Not run yet as they stand now: {', '.join(found['waiting'])}.")
    return "\n".join(out)
