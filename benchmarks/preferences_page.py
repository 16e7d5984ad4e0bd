"""The rows of `benchmarks.preferences` as a table and a picture, written into the page that describes them.

python -m benchmarks.preferences_page benchmarks/sweeps/preferences.json docs/preferences.md
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.core.errors import UserError
from posttrain.evals.intervals import student
from posttrain.evals.pictures import COLOURS

Row = dict[str, Any]
BEGIN, END = "<!-- rows: written by benchmarks.preferences_page -->", "<!-- end of rows -->"
NAMES = {"dpo": "DPO", "kto": "KTO", "simpo": "SimPO", "inpo": "INPO", "dpa": "DPA"}
_HEAD = (
    "method", "rate", "wins (%)", "at equal length (%)", "the same by `helpful` (%)", "KL (nats)", "tokens", "ended (%)", "diversity: one prompt, over prompts",
    "updates", "answers learned from", "sampled for it",
)  # fmt: skip


def runs_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Runs by method, in the order of the table; those that chose a rate are no results."""
    found = [r for r in rows if "method" in r and r["split"] == "held_out"]
    by = {m: sorted((r for r in found if r["method"] == m), key=lambda r: r["seed"]) for m in NAMES}
    return {m: some for m, some in by.items() if some}


def over_seeds(values: Sequence[float], digits: int = 1) -> str:
    """The mean, its 95% interval (Student t over seeds), and every seed."""
    mean, each = f"{fmean(values):.{digits}f}", ", ".join(f"{x:.{digits}f}" for x in values)
    if len(values) < 2:
        return f"{mean} (one seed)"
    low, high = student(list(values))
    return f"{mean} [{low:.{digits}f}, {high:.{digits}f}] ({each})"


def table(rows: Sequence[Row]) -> list[str]:
    """What each method came to, at its last update; the start in the first line."""
    runs = runs_of(rows)
    out = [f"| {' | '.join(_HEAD)} |", "|---" * len(_HEAD) + "|"]
    first = [r["points"][0] for m, some in runs.items() if m != "dpa" for r in some]
    if first:
        alike = [f"{fmean(f(p) for p in first):.1f}" for f in (won, level, theirs)]
        cells = [
            "the start",
            "",
            *alike,
            "0",
            mean_of(first, "tokens"),
            mean_of(first, "ended", 100),
            variety(first),
            "",
            "",
            "",
        ]
        out.append(f"| {' | '.join(cells)} |")
    for name, some in runs.items():
        last = [r["points"][-1] for r in some]
        rates = ", ".join(dict.fromkeys(f"{r['lr_used']:.3g}" for r in some))
        cells = [NAMES[name], rates, *(over_seeds([f(p) for p in last]) for f in (won, level, theirs)), over_seeds([p["kl"] for p in last]),
                 mean_of(last, "tokens", digits=0), mean_of(last, "ended", 100), variety(last)]  # fmt: skip
        cells += [f"{fmean(r['spent'][k] for r in some):,.0f}" for k in ("updates", "written", "sampled")]
        out.append(f"| {' | '.join(cells)} |")
    return out


def won(p: Row) -> float:
    return 100 * float(p["judge"]["win_rate"])


def level(p: Row) -> float:
    return 100 * float(p["judge"]["length_controlled"])


def theirs(p: Row) -> float:
    return 100 * float(p["helpful"]["length_controlled"])


def mean_of(points: Sequence[Row], key: str, scale: float = 1.0, digits: int = 0) -> str:
    return f"{scale * fmean(p[key] for p in points):.{digits}f}"


def variety(points: Sequence[Row]) -> str:
    return ", ".join(mean_of(points, k, digits=3) for k in ("per_input", "across_input"))


def judges(rows: Sequence[Row]) -> list[str]:
    """Both reward models on the held-out pairs."""
    found = [r for r in rows if "reward_model" in r]
    if not found:
        return []
    out = [
        "| reward model | right (%) | where the shorter one is preferred (%) | calibration error | pairs |",
        "|---|---|---|---|---|",
    ]
    for r in sorted(found, key=lambda r: r["reward_model"], reverse=True):
        shorter = 100 * r["accuracy_where_chosen_is_shorter"]
        out.append(
            f"| `{r['reward_model']}` | {100 * r['accuracy']:.1f} | {shorter:.1f} | {r['calibration_error']:.3f} | {r['held_out_pairs']:,} |"
        )
    longer = 100 * found[0]["accuracy_of_the_longer_one"]
    agree = f" The two agree on {100 * found[0]['agreement']:.1f}% of them." if "agreement" in found[0] else ""
    return [*out, "", f"The longer answer is the preferred one in {longer:.1f}% of these pairs.{agree}"]


def rates(rows: Sequence[Row]) -> list[str]:
    """What rates came to on the seed and the prompts they were chosen on, by the reward model that policies may use."""
    found = [r for r in rows if r.get("split") == "dev"]
    if not found:
        given = {NAMES[r["method"]]: r["lr"] for r in rows if r.get("lr") is not None and r.get("method") in NAMES}
        if not given:
            return ["Rates are the package's own for a model of this size."]
        return [
            f"Rates were given ({', '.join(f'{name} {lr:g}' for name, lr in given.items())}), not chosen by a trial."
        ]
    tried = sorted({r["lr"] for r in found})
    cells = {(r["method"], r["lr"]): r["points"][-1] for r in found}
    one = found[0]
    out = [f"Rates were chosen on seed {one['seed']}, on prompts nobody else uses, by `helpful`: wins at equal length in percent, KL in brackets.", "",
           f"| method | {' | '.join(f'{x:g}' for x in tried)} |", "|---" * (len(tried) + 1) + "|"]  # fmt: skip
    for m in NAMES:
        mine = [cells.get((m, x)) for x in tried]
        said = [f"{theirs(p):.1f} ({p['kl']:.0f})" if p else "" for p in mine]
        out.append(f"| {NAMES[m]} | {' | '.join(said)} |")
    return out


def section(rows: Sequence[Row], picture: str) -> list[str]:
    """What stands between the two marks of the page."""
    runs = runs_of(rows)
    if not runs:
        raise UserError(
            "no run of benchmarks.preferences in the file; those of --check choose a rate and are no results"
        )
    one, seeds = next(iter(runs.values()))[0], max(map(len, runs.values()))
    made = f"{one['hardware']}, {one['versions']}, {one['date']}; {seeds} seeds, mean and 95% interval over them (Student t), every seed in brackets:"
    return [made, "", *table(rows), "", f"![Win rate at equal length against updates and against KL, and length of answers]({picture})", "", *judges(rows), "", *rates(rows)]  # fmt: skip


def draw(rows: Sequence[Row], path: Path) -> None:
    """Three pictures of every run's looks: win rate at equal length by update, the same by KL, tokens of an answer by update."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels: list[tuple[str, str, Callable[[Row], float], Callable[[Row], float]]] = [
        ("updates", "wins at equal length (%)", lambda p: p["update"], level),
        ("KL to the start (nats)", "wins at equal length (%)", lambda p: math.sqrt(max(p["kl"], 0.0)), level),
        ("updates", "tokens of an answer", lambda p: p["update"], lambda p: p["tokens"]),
    ]
    for axes, (xlabel, ylabel, x, y) in zip(figure.subplots(1, 3), panels, strict=True):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e5e5e5", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        if "wins" in ylabel:
            axes.axhline(50, color="#6c757d", linewidth=0.8, linestyle=":")
        for (name, some), colour in zip(runs_of(rows).items(), COLOURS, strict=False):
            for i, r in enumerate(some):
                axes.plot([x(p) for p in r["points"]], [y(p) for p in r["points"]], color=colour, marker="o", markersize=3, linewidth=1.2,
                          label=NAMES[name] if i == 0 else None)  # fmt: skip
        if xlabel.startswith("KL"):  # as wide at small values as at large ones: the axis is the root of the KL
            ticks = [k for k in (0, 1, 5, 20, 50, 100, 200, 400, 800) if math.sqrt(k) <= axes.get_xlim()[1]]
            axes.set_xticks([math.sqrt(k) for k in ticks], [str(k) for k in ticks])
    figure.axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path)
    parser.add_argument("page", type=Path)
    args = parser.parse_args()
    rows, picture = json.loads(args.rows.read_text()), args.page.with_suffix(".png")
    before, _, rest = args.page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    args.page.write_text("\n".join([before + BEGIN, "", *section(rows, picture.name), "", END + after]))
    draw(rows, picture)
    print(f"wrote {args.page} and {picture}")


if __name__ == "__main__":
    main()
