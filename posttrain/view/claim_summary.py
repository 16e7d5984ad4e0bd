"""All claims counted: shown or not, by level, at the last attempt and at the first. For METHODS.md and `posttrain check --summary`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from posttrain.core.evidence import RUN
from posttrain.core.index import Row


def counted(claims: dict[str, Row]) -> dict[str, Any]:
    """Every claim once: (level, verdict) of its last and of its first attempt; those that an earlier rule for intervals had called
    otherwise; those whose file is newer than their attempts; those whose code has changed since. Where the last attempt was at an
    earlier claim, with other checks or seeds, it is not counted as the last: the claim as it stands has none."""
    tried = {id: c["attempts"] for id, c in claims.items() if c["attempts"]}
    stands = {id: made for id, made in tried.items() if not made[-1].get("earlier")}
    return {
        "last": Counter((made[-1]["level"], made[-1]["verdict"]) for made in stands.values()),
        "first": Counter((made[0]["level"], made[0]["verdict"]) for made in tried.values()),
        "changed": [id for id, made in tried.items() if "recorded_verdict" in made[-1]],
        "waiting": [id for id, c in claims.items() if c.get("waiting")],
        "earlier": [id for id in tried if id not in stands],
        "stale": [id for id in stands if claims[id]["stale"]],
    }


def claim_summary(claims: dict[str, Row]) -> list[str]:
    """The lines of a table, and what it does not say."""
    found = counted(claims)
    last, first = found["last"], found["first"]
    out = ["| level | shown | not shown | shown at the first attempt |", "|---|---|---|---|"]
    for level in RUN:
        begun, ended = (sum(n for (at, _), n in some.items() if at == level) for some in (first, last))
        if begun or ended:
            shown = last[level, "shown"]
            out.append(f"| {level} | {shown} | {ended - shown} | {first[level, 'shown']} of {begun} |")
    every, shown = sum(last.values()), sum(n for (_, verdict), n in last.items() if verdict == "shown")
    at_first = sum(n for (_, verdict), n in first.items() if verdict == "shown")
    begun = sum(first.values())
    out += [
        "",
        f"{every} claims were run: {shown} shown, {every - shown} not; at the first attempt {at_first} of {begun}.",
    ]
    sentences = {
        "changed": "were recorded otherwise, by the rule for intervals of their time",
        "waiting": "have not been run as they stand now",
        "earlier": "of them were run before, as an earlier claim with other checks or seeds",
        "stale": "were run with code that has changed since",
    }
    return out + [f"{len(found[k])} {told}: {', '.join(found[k])}." for k, told in sentences.items() if found[k]]
