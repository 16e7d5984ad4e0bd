"""Simulated throughput and cost from 1 to 1,024 GPUs, as pictures and as the table of docs/scale.md.

    python -m benchmarks.plan_curves --out docs/assets

One model, one batch: how far the same work can be spread. Every figure is simulated; what it rests on is in docs/scale.md.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

from posttrain.evals.pictures import COLOURS, canvas, finish
from posttrain.planning.hardware import cluster
from posttrain.planning.layouts import Plan, Site
from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import KNOWN
from posttrain.planning.work import Work

MODEL, CARD = "Qwen/Qwen2.5-1.5B", "h100-80gb"
WORK = Work(1024, 16, Lengths(4064, 16256), 128)
COUNTS = tuple(2**i for i in range(11))
LAYOUTS = ("colocated, synchronous", "split, synchronous", "split, lag 1")
STEPS = 12


def site_of(cards: int, model: str = MODEL) -> Site:
    return Site(KNOWN[model], WORK, cluster(f"{min(8, cards)}x{CARD}", max(1, cards // 8)))


def plans(cards: int, model: str = MODEL) -> dict[str, Plan]:
    """The fastest of each layout that fits on so many cards."""
    site = site_of(cards, model)
    found = {"colocated, synchronous": site.timed(site.colocated(), STEPS)}
    every = [site.timed(site.split(t, 1), STEPS) for t in site.splits()]
    if fitting := [p for p in every if p.outcome]:
        best = max(fitting, key=lambda p: p.rate)
        found["split, lag 1"] = best
        found["split, synchronous"] = site.timed(replace(best, layout=replace(best.layout, lag=0)), STEPS)
    return {name: plan for name, plan in found.items() if plan.outcome}


def cost(plan: Plan) -> float:
    """GPU-seconds per million tokens of answers."""
    return 1e6 / plan.rate


def draw(made: dict[int, dict[str, Plan]], out: Path) -> None:
    for file, told, figure_of in (
        ("scale-throughput.svg", "tokens of answers per second, all GPUs", lambda p: p.rate * p.outcome.cards),
        ("scale-cost.svg", "GPU-seconds per million tokens of answers", cost),
    ):
        figure, axes = canvas(out / file)
        for colour, name in zip(COLOURS, LAYOUTS):
            points = [(cards, figure_of(found[name])) for cards, found in made.items() if name in found]
            axes.plot(*zip(*points), color=colour, marker="o", markersize=4, linewidth=1.8, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(COUNTS, [f"{x:,}" for x in COUNTS])
        title = f"Simulated: {MODEL.rpartition('/')[2]}, 1,024 prompts x 16 answers of 4k tokens, H100"
        finish(figure, axes, out / file, ("GPUs", told, title), legend=True)


def table(made: dict[int, dict[str, Plan]]) -> str:
    """Markdown: seconds per step, and GPU-seconds per million tokens."""
    lines = ["| GPUs | " + " | ".join(LAYOUTS) + " |", "|---|" + "---|" * len(LAYOUTS)]
    for cards, found in made.items():
        cells = []
        for name in LAYOUTS:
            plan = found.get(name)
            if plan is None or plan.outcome is None:
                cells.append("")
                continue
            parts = f" ({plan.layout.trainers}:{plan.layout.workers})" if plan.layout.kind == "split" else ""
            cells.append(f"{plan.outcome.step:,.0f} s, {cost(plan):,.0f}{parts}")
        lines.append(f"| {cards:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    os.environ.setdefault("SOURCE_DATE_EPOCH", "0")  # the same picture, the same file
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "posttrain"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    made = {cards: plans(cards) for cards in COUNTS}
    print(table(made))
    if args.out:
        draw(made, args.out)


if __name__ == "__main__":
    main()
