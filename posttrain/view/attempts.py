"""Attempts at a claim for pages: each check with its interval, its margin, and what the two arms spent differently."""

from __future__ import annotations

from typing import Any

from posttrain.core.index import Row


def tried(claim: Row) -> list[str]:
    """Every attempt at a claim, oldest first, each check with its interval."""
    out = [
        "| attempt | level | verdict | difference, interval over seeds (Student t, 99.5%), and margin of each check |",
        "|---|---|---|---|",
    ]
    for a in claim["attempts"]:
        last = a is claim["attempts"][-1]
        since = ", stale" if a["level"] == "table" else ", the code has changed since"
        since = ", of an earlier claim" if a.get("earlier") else since if claim["stale"] else ""
        verdict = a["verdict"] + (since if last else "")
        verdict += f" (recorded as {a['recorded_verdict']})" if "recorded_verdict" in a else ""
        checks = "; ".join(interval(c) for c in a["checks"])
        when = ", ".join([a["date"], f"{a['seeds']} seeds", *(f"commit {c}" for c in a.get("commits", []))])
        out.append(f"| {a['attempt']} ({when}) | {a['level']} | {verdict} | {checks} |")
    return out


def interval(c: dict[str, Any]) -> str:
    """A check as it came out."""
    mark = "" if c["shown"] else "**not shown** "
    told = f"{c['difference']:+.3g} {span(c)}"
    then = c.get("recorded")
    if then and then["shown"] != c["shown"]:
        told += f" (recorded as {'shown' if then['shown'] else 'not shown'}: {then['how']} [{then['low']:+.3g}, {then['high']:+.3g}])"
    return f"{mark}{c['name']} {told}" + (f", margin {c['margin']:+g}" if c["margin"] else "") + spent(c)


def spent(c: dict[str, Any]) -> str:
    """What the arm in front spent otherwise than the other, by more than a fifth: ", with 2x the samples and tokens, 100 rows against none"."""
    told: dict[str, list[str]] = {}
    for what, (one, other) in c.get("spent", {}).items():
        name = "rows" if what == "written" else what
        if one and other:
            told.setdefault(f"{one / other:.2g}x the ", []).append(name)
        else:
            told[f"{one:,.0f} {name} against none" if one else f"no {name} against {other:,.0f}"] = []
    words = ", ".join(ratio + " and ".join(names) for ratio, names in told.items())
    return f", with {words}" if told else ""


def span(c: dict[str, Any]) -> str:
    """The interval of a check, or why there is none."""
    how = str(c.get("how", ""))
    if how.startswith("no spread"):
        return "on every seed: no spread, no interval"
    ends = f"[{c['low']:+.3g}, {c['high']:+.3g}]"
    return f"{ends} (exact: least and largest of all seeds)" if how.startswith("exact") else ends
