"""Conservative reward-model ensembles: what every member likes is a safer aim than what one of them likes."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.courtesy import ASKED, HOW, comparisons, gold, gold_file, notes

PAIRS, NOISE, STEPS, POOL, ASKS = 120, 0.25, 40, 256, 24


def optimised(seed: int, how: str, members: int = 5) -> Measured:
    """The registered plan twice: best of n of the start's answers, and 40 steps of PPO; both train the members on the same pairs."""
    with Bench(seed) as bench:
        pairs, told = comparisons(bench, PAIRS, NOISE), f"how={how!r}, members={members}"
        common = ASKED | {"reward": gold_file(bench), "eval_problems": 2 * ASKS}
        plan = f"rm-ensemble-conservative({told}, pairs={pairs!r}"
        best = bench.run("best", method=f"{plan}, optimiser='best-of-n')", num_generations=POOL, **common)
        curve = notes(best)["best_of_n"]
        golds = {int(n): point["gold"] for n, point in curve.items()}
        run = bench.run("ppo", method=f"{plan}, steps={STEPS})", **common)
        found = bench.measured(run, "instructions", 200, gold, level=1, think=False, sampling=HOW)
        found.update({k: notes(run)["measured"]["policy"][k] for k in ("kl", "proxy")})
        found.update({f"best_of_{n}": x for n, x in golds.items() if n in (4, 16, 64, 256)})
        return found


claim(
    Claim(
        id="rm-ensemble-conservative",
        title="RM ensembles (WCO/UWO)",
        paper="arXiv:2310.02743",
        family="reward-model",
        says="Optimising the worst case of an ensemble (WCO), or its mean less its variance (UWO), ends at a higher true worth than one "
        "reward model, under best-of-n and under PPO, with a quarter of the labels flipped.",
        experiment="The embedded model answers small requests; 120 comparisons of its own answers by a hidden taste, a quarter of the labels "
        "flipped. The registered plan with one reward model, and with five by seed combined by mean, minimum (WCO) and mean less "
        "variance (UWO): gold of the best of 256 of the start's answers, and after 40 steps of PPO with 64 answers each, KL price 0.1.",
        arms={
            "single": partial(optimised, how="mean", members=1),
            "mean": partial(optimised, how="mean"),
            "worst case": partial(optimised, how="wco"),
            "uncertainty weighted": partial(optimised, how="uwo"),
        },
        checks=(
            Check("best of n: worst case beats one model", "best_of_256", "worst case", "single"),
            Check("best of n: uncertainty weighted beats one model", "best_of_256", "uncertainty weighted", "single"),
            Check("PPO: worst case beats one model", "gold", "worst case", "single"),
            Check("PPO: uncertainty weighted beats one model", "gold", "uncertainty weighted", "single"),
        ),
        seeds=tuple(range(400, 412)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="",
    ),
    __file__,
)
