"""BARFI: a blend learned against the primary reward uses a good heuristic and drops a bad one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds import equations
from posttrain.core.method import find_method

ROUNDS, STEPS, OUTER, PROBLEMS = 5, 5, 2, 200  # OUTER: batches of answers that a step of the blend takes
FILE = equations.__file__
HEURISTICS = {"good": f"{FILE}:right_steps", "bad": f"{FILE}:subtracts"}
ASKED: dict[str, Any] = {
    "task": "word_problems", "prompts": 8, "num_generations": 4, "think": True, "dtype": "float32", "sampling": {"max_tokens": 48},
}  # fmt: skip
HELD = find_method("rloo").but(shaping="kl_in_reward(coef=0.1)")  # the inner method of the plan


def measured(bench: Bench, run: Path) -> Measured:
    return bench.measured(run, "word_problems", PROBLEMS, think=True, sampling=ASKED["sampling"])


def by_barfi(seed: int) -> Measured:
    """The registered plan with either heuristic: 25 steps of 32 answers, and 10 more batches of them for the blend."""
    out: dict[str, float] = {}
    with Bench(seed) as bench:
        for name, aux in HEURISTICS.items():
            run = bench.run(name, method=f"barfi(aux='{aux}', rounds={ROUNDS}, steps={STEPS})", **ASKED)
            found = measured(bench, run)
            out |= {f"accuracy_{name}": found["accuracy"], f"weight_{name}": weight(run)}
        return Measured(out, of_one(bench), found.curves)


def of_one(bench: Bench) -> dict[str, float]:
    """What one of BARFI's two runs spent: half of all, and the answers for the blend, which are drawn between the phases."""
    spent = {k: n / len(HEURISTICS) for k, n in bench.tally.spent().items() if k != "prompts"}
    return spent | {"samples": spent["samples"] + ROUNDS * OUTER * ASKED["prompts"] * ASKED["num_generations"]}


def weight(run: Path) -> float:
    """What the heuristic ended up with, of a blend of length 1."""
    return float(json.loads((run / "summary.json").read_text())["blends"][-1][1])


def by_sum(seed: int) -> Measured:
    """The plain sum with the bad heuristic, where BARFI begins, for as many answers in all."""
    with Bench(seed) as bench:
        both = f"0.70710678*task + 0.70710678*{HEURISTICS['bad']}"
        found = measured(bench, bench.run("sum", method=HELD, reward=both, steps=ROUNDS * (STEPS + OUTER), **ASKED))
        return Measured({"accuracy_bad": found["accuracy"]}, found.spent, found.curves)


def by_primary(seed: int) -> Measured:
    """The primary reward alone, for as many answers as one of BARFI's runs."""
    with Bench(seed) as bench:
        run = bench.run("primary", method=HELD, reward="task", steps=ROUNDS * (STEPS + OUTER), **ASKED)
        found = measured(bench, run)
        return Measured({f"accuracy_{name}": found["accuracy"] for name in HEURISTICS}, found.spent, found.curves)


claim(
    Claim(
        id="barfi",
        title="BARFI",
        paper="arXiv:2310.19007",
        family="reward-shaping-safety",
        says="A blend of rewards learned by implicit bi-level gradients uses a helpful heuristic and is unharmed by a misleading one, "
        "which the plain sum follows.",
        experiment="The embedded model on word problems; the primary reward is the checked answer. A heuristic pays for the equations of a "
        "right solution (good), or twice as much as the primary for taking something away, whatever is asked (bad). The registered plan, 5 "
        "rounds of 5 steps of 32 answers with 10 more batches for the blend; RLOO with the same KL on the plain sum where the plan begins, and "
        "on the primary alone, for as many answers in all and so for 10 updates more (the sum with the bad heuristic only). Accuracy on 200 held-out problems.",
        arms={"BARFI": by_barfi, "sum": by_sum, "primary": by_primary},
        checks=(
            Check("a bad heuristic does less harm than in the sum", "accuracy_bad", "BARFI", "sum", margin=0.05),
            Check("no harm against the primary alone", "accuracy_bad", "BARFI", "primary", margin=-0.05),
            Check("a bad heuristic loses its weight", "weight_bad", "BARFI", 0.5, lower=True),
            Check("a good one is used", "accuracy_good", "BARFI", "primary"),
        ),
        seeds=tuple(range(200, 208)),
        level="pocket",
        shares=(Shared("samples"),),
        tried="Attempt 1 had exact derivatives of a table. On the embedded model, seed 100: with the bad heuristic 0.523 by BARFI, 0.357 by the sum and "
        "0.653 by the primary alone, the heuristic's weight from 0.71 to -0.11; with the good one 0.857 by BARFI, 0.657 by the sum. So that it is "
        "unharmed is not expected to hold in so few rounds; the check is kept, since the paper says it. Only seeds, 200 problems in "
        "place of 300 and one heuristic of the sum were changed after that, for time. All arms run in float32, which the differences of gradients need.",
    ),
    __file__,
)
