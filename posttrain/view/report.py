"""The report at the end of a run: before and after on the same held-out problems or pairs, three examples, the curve."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posttrain.core.terminal import printable
from posttrain.view.figures import duration, mean, percent, short, sparkline

RANKED = ("pairs", "good answers")  # what was graded by comparing written answers
_ANSWER = 240  # characters of an answer that are shown


def report(
    console: Console, before: Any, after: Any, summary: dict[str, Any], curve: Sequence[float], name: str = "reward"
) -> None:
    """Print the report, without the next steps. curve: the metric `name` at every step."""
    console.print()
    if after.problems:
        console.print(score_table(before, after))
        for lines in samples(before, after):
            console.print(lines)
        if after.told:
            console.print(Text(f"\n{after.told}", style="yellow"), soft_wrap=True)
    if curve:
        edge = max(1, len(curve) // 10)
        first, last = mean(curve[:edge]), mean(curve[-edge:])
        console.print(Text.assemble(f"\n{name} ", (sparkline(curve), "green"), f"  {short(first)} to {short(last)}"))
    told = f"{len(curve)} steps in {duration(summary['seconds'])}, {summary['tokens']:,} tokens"
    if summary.get("skipped_updates"):
        told += f"; {summary['skipped_updates']} updates were not finite and were skipped"
    console.print(told, highlight=False)


def score_table(before: Any, after: Any) -> Table:
    """The mean grade with its standard error; the error of the change is that of paired differences."""
    table = Table(title=f"{after.problems} held-out {after.of}", title_justify="left")
    for head in ("", "before", "after", "change"):
        table.add_column(head, justify="left" if not head else "right")
    gain, error = paired(before, after)
    change = f"{100 * gain:+.1f} ± {100 * error:.1f}" if after.name == "accuracy" else f"{gain:+.3g} ± {error:.2g}"
    table.add_row("ranked right" if after.of in RANKED else after.name, graded(before), graded(after), change)
    for row in pair_rows(before, after) if after.of in RANKED else answer_rows(before, after):
        table.add_row(*row)
    return table


def pair_rows(before: Any, after: Any) -> list[tuple[str, ...]]:
    """For ranked pairs, where no answer was sampled: the mean margin between preferred and rejected."""
    told = ("mean margin", short(before.margin), short(after.margin), f"{after.margin - before.margin:+.3g}")
    return [told]


def answer_rows(before: Any, after: Any) -> list[tuple[str, ...]]:
    """Tokens per answer, the share of answers that finished, and how many could not be scored."""
    tokens = (f"{before.tokens:.1f}", f"{after.tokens:.1f}", f"{after.tokens - before.tokens:+.1f}")
    done = [mean([float(not r.truncated) for r in s.rollouts]) for s in (before, after)]
    ended = (percent(done[0]), percent(done[1]), f"{100 * (done[1] - done[0]):+.1f}")
    failed = [sum(r.failed for r in s.rollouts) for s in (before, after)]
    bad = [("could not be scored", *map(str, failed), f"{failed[1] - failed[0]:+d}")] if any(failed) else []
    return [("tokens per answer", *tokens), ("finished answers", *ended), *bad]


def graded(score: Any) -> str:
    """Mean ± standard error: a share in per cent, a reward as the number it is."""
    if score.name == "accuracy":
        return f"{percent(score.accuracy)} ± {100 * score.error:.1f}"
    return f"{short(score.accuracy)} ± {score.error:.2g}"


def paired(before: Any, after: Any) -> tuple[float, float]:
    """Mean and standard error of the problem-wise difference: sqrt(var(d) / n); what could not be scored is left out."""
    every = [worth(b) - worth(a) for a, b in zip(before.rollouts, after.rollouts)]
    d = [x for x in every if math.isfinite(x)]
    gain = mean(d)
    var = sum((x - gain) ** 2 for x in d) / max(len(d) - 1, 1)
    return gain, math.sqrt(var / max(len(d), 1))


def worth(r: Any) -> float:
    """The total reward of an answer, its turns included; NaN where it could not be scored."""
    return math.nan if r.failed else float(r.total)


def samples(before: Any, after: Any, n: int = 3) -> list[Text]:
    """The same problems before and after: one won, one lost, one unchanged where there are such; then the next ones."""
    pairs = list(zip(before.rollouts, after.rollouts))
    change = [worth(b) - worth(a) for a, b in pairs]
    kinds = [[i for i, c in enumerate(change) if math.isfinite(c) and sign(c) == s] for s in (1, -1, 0)]
    chosen = [kind[0] for kind in kinds if kind]
    chosen += [i for i in range(len(pairs)) if i not in chosen]
    show = (
        pair_text
        if after.of in RANKED
        else sample_text
        if after.name == "accuracy"
        else partial(sample_text, marks=False)
    )
    return [show(*pairs[i]) for i in sorted(chosen[:n])]


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def sample_text(before: Any, after: Any, marks: bool = True) -> Text:
    """A question and its two answers, each with a mark or with its reward."""
    out = Text()
    out.append(f"\n{clip(before.prompt.last)}", style="bold")
    for word, r in (("before", before), ("after ", after)):
        good = worth(r) > 0.5
        out.append(f"\n  {word} ")
        if marks:
            out.append("✓ " if good else "✗ ", style="green" if good else "red")
        else:
            out.append(f"{short(math.nan if r.reward is None else worth(r))}  ", style="cyan")
        out.append(clip(r.text) + (" (cut off)" if r.truncated else ""))
    return out


def pair_text(before: Any, after: Any) -> Text:
    """A question, its preferred answer with a mark for each ranking, and the other answer."""
    out = Text()
    out.append(f"\n{clip(before.prompt.last)}", style="bold")
    other = before.prompt.info.get("rejected")
    told = (
        f"\n  preferred  {clip(before.text)}\n  rejected   {clip(str(other))}"
        if other is not None
        else f"\n  good  {clip(before.text)}"
    )
    out.append(f"{told}\n  ranked")
    for word, r in (("before", before), ("after", after)):
        grade = r.reward or 0.0
        mark, style = ("✓", "green") if grade > 0.5 else ("=", "yellow") if grade == 0.5 else ("✗", "red")
        out.append(f" {word} ")
        out.append(mark, style=style)
    return out


def clip(text: str) -> str:
    """One line of at most _ANSWER characters, none of which a terminal acts on."""
    line = printable(" ".join(text.split()), one_line=True) or "(nothing)"
    return line if len(line) <= _ANSWER else line[: _ANSWER - 1] + "…"


def next_steps(console: Console, commands: Sequence[tuple[str, str]]) -> None:
    """Print suggested commands, each with what it does."""
    width = max(len(c) for c, _ in commands)
    console.print("\nnext:", style="bold")
    for command, what in commands:
        console.print(Text.assemble("  ", (command.ljust(width), "cyan"), f"  {what}"), soft_wrap=True)
