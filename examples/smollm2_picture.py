"""The curves of `smollm2_grpo.py` as one picture: greedy accuracy on held-out questions against seconds of learning.

python examples/smollm2_picture.py benchmarks/results/smollm2_grpo.json docs/smollm2.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    source, target = map(Path, sys.argv[1:3])
    rows = json.loads(source.read_text())
    tasks = sorted({r["task"] for r in rows}, reverse=True)
    figure, axes = plt.subplots(1, len(tasks), figsize=(9, 3.2), sharey=True, squeeze=False)
    for ax, task in zip(axes[0], tasks, strict=True):
        for r in (r for r in rows if r["task"] == task):
            points = [(p["seconds"], 100 * p["greedy"]) for p in r["points"]]
            name = f"LoRA {r['lora']}" if r["lora"] else "all weights"
            ax.plot(*zip(*points, strict=True), color="tab:orange" if r["lora"] else "tab:blue", lw=1.4,
                    label=name if r["seed"] == 0 else None)  # fmt: skip
        ax.set(title=task, xlabel="seconds of learning, two runs on one H200", ylim=(0, 100))
        ax.grid(alpha=0.3)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("right, greedy (%)")
    axes[0][0].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


if __name__ == "__main__":
    main()
