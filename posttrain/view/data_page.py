"""A data set as a page and on the terminal: what was understood, its figures, histograms of lengths."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from posttrain.core.terminal import shown
from posttrain.environments.preference_survey import sentences

Bins = Sequence[tuple[int, int, int]]
_BAR = "▏▎▍▌▋▊▉█"
_STYLE = """
:root { --ink: #1f2430; --dim: #667085; --line: #e4e7ec; --bar: #4f6df5; --page: #ffffff; --card: #f8f9fc; --warn: #b54708; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ee; --dim: #98a2b3; --line: #2f3542; --bar: #8098f9; --page: #14171f; --card: #1b1f2a; --warn: #fdb022; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 860px; margin: 2.5rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p.dim, figcaption, th { color: var(--dim); } .warn { color: var(--warn); }
table { border-collapse: collapse; } th, td { padding: .25rem .9rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tr + tr td { border-top: 1px solid var(--line); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: 13px; }
figure { margin: 0 0 1rem; } svg { width: 100%; height: auto; } svg text { fill: var(--dim); font-size: 11px; }
svg .bar { fill: var(--bar); } svg .axis { stroke: var(--line); }
"""


def bar(share: float, width: int = 32) -> str:
    """A bar of eighths of a character."""
    eighths = round(share * width * 8)
    eighths = max(eighths, 1) if share > 0 else 0
    return "█" * (eighths // 8) + (_BAR[eighths % 8 - 1] if eighths % 8 else "")


def histogram(bins: Bins) -> list[str]:
    """Lines for the terminal: a bin, its bar, its count."""
    most = max(n for _, _, n in bins)
    label = max(len(f"{a:,} to {b:,}") for a, b, _ in bins)
    return [f"  {f'{a:,} to {b:,}':>{label}}  {bar(n / most):32}  {n:,}" for a, b, n in bins]


def svg(bins: Bins, width: int = 820, height: int = 190) -> str:
    """The same as a picture without any library."""
    left, bottom, top = 44, 26, 8
    most, step = max(n for _, _, n in bins), (width - left) / len(bins)
    tall = height - bottom - top
    parts = [f'<line class="axis" x1="{left}" y1="{top + tall}" x2="{width}" y2="{top + tall}"/>']
    for share in (0.5, 1.0):
        y = top + tall * (1 - share)
        parts.append(f'<line class="axis" x1="{left}" y1="{y:.1f}" x2="{width}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{round(most * share):,}</text>')
    for i, (start, end, n) in enumerate(bins):
        x, h = left + i * step, tall * n / most
        parts.append(
            f'<rect class="bar" x="{x + 1.5:.1f}" y="{top + tall - h:.1f}" width="{step - 3:.1f}" height="{h:.1f}" rx="2">'
            f"<title>{start:,} to {end:,}: {n:,}</title></rect>"
        )
        if i % max(1, len(bins) // 8) == 0:
            parts.append(f'<text x="{x:.1f}" y="{height - 8}">{start:,}</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'


def pictures(found: dict[str, Any]) -> list[tuple[str, Bins]]:
    """Every histogram with its caption: lengths in the finest unit there is, and shares."""
    unit = "tokens" if "tokens" in found["bins"] else "characters"
    drawn = [(f"{what} lengths in {unit}", some) for what, some in found["bins"][unit].items()]
    return drawn + [(f"{what}, percent", some) for what, some in found["bins"].get("percent", {}).items()]


def table(lengths: dict[str, dict[str, dict[str, int]]]) -> str:
    rows = [(f"{what}, {unit}", figures) for unit, some in lengths.items() for what, figures in some.items()]
    head = "".join(f"<th>{escape(q)}</th>" for q in rows[0][1])
    body = "".join(
        f"<tr><td>{escape(name)}</td>{''.join(f'<td>{v:,}</td>' for v in figures.values())}</tr>"
        for name, figures in rows
    )
    return f"<table><tr><th></th>{head}</tr>{body}</table>"


def page(title: str, told: Sequence[str], found: dict[str, Any], findings: Sequence[str]) -> str:
    """One HTML file that needs no other."""
    figures = "".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{svg(some)}</figure>" for caption, some in pictures(found)
    )
    lines = "".join(
        f'<p class="{"warn" if line.startswith("left out") else ""}">{escape(line)}</p>'
        for line in told
        if not line.startswith("first prompt")
    )
    first = next((line.partition(": ")[2] for line in told if line.startswith("first prompt")), "")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style>'
        f"<h1>{escape(title)}</h1><h2>What was understood</h2>{lines}<h2>First prompt</h2><pre>{escape(first)}</pre>"
        f"<h2>Lengths</h2>{table(found['lengths'])}{figures}{preferences(found)}<h2>Questions that come twice</h2>"
        + "".join(f"<p>{escape(line)}</p>" for line in findings)
        + "</html>\n"
    )


def preferences(found: dict[str, Any]) -> str:
    """What preferences say of themselves, where the data is of such."""
    if "preferences" not in found:
        return ""
    return "<h2>Preferences</h2>" + "".join(f"<p>{escape(line)}</p>" for line in sentences(found["preferences"]))


def findings(found: dict[str, Any]) -> list[str]:
    """Duplicates and contamination as sentences."""
    twice, leak, rows = found["duplicates"], found["contamination"], found["rows"]
    out = [f"duplicates: {twice['train']:,} of {rows['train']:,} training rows ask what an earlier one asks"]
    if twice["first"]:
        out[0] += f"; the first: {shown(twice['first'], 100)}"
    out.append(
        f"contamination: {leak['word for word']:,} of {rows['test']:,} test questions are in a training row word for word, "
        f"{leak['near']:,} more share half of their sequences of 8 words with one"
    )
    if leak["first"]:
        out[1] += f"; the first: {shown(leak['first'], 100)}"
    return out
