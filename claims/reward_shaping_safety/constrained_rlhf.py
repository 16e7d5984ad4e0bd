"""Constrained RLHF: rewards that are held at points found by a search are worth more than their sum, which is over-optimised."""

from __future__ import annotations

from pathlib import Path

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds import manners
from claims.worlds.courtesy import ASKED, HOW, gold, gold_file, requests
from posttrain.core.method import find_method

FILE = manners.__file__
BOTH = f"{FILE}:warm + task"
TRIES, EVERY, LAST = 6, 6, 12  # 48 steps in all
LOOKS = TRIES + 1


def constrained(seed: int) -> Measured:
    """The registered plan: 6 tries of 6 steps that search the points on the taste, then 12 steps at the best."""
    with Bench(seed) as bench:
        options = f"points='warm, task', gold={gold_file(bench)!r}, tries={TRIES}, every={EVERY}, steps={LAST}"
        run = bench.run("plan", method=f"constrained-rlhf({options})", reward=BOTH, **ASKED)
        return _measured(bench, run)


def summed(seed: int) -> Measured:
    """48 steps of PPO on the sum of both."""
    with Bench(seed) as bench:
        run = bench.run("ppo", method=find_method("ppo"), reward=BOTH, steps=TRIES * EVERY + LAST, **ASKED)
        return _measured(bench, run)


def stopped(seed: int) -> Measured:
    """PPO on the sum, looked at with the taste as often as the search looks, and stopped where it was best."""
    with Bench(seed) as bench:
        seen: list[tuple[float, Path | None]] = []
        last: Path | None = None
        for at in range(LOOKS):
            model = str(last) if last else "pocket"
            steps = EVERY if at < TRIES else LAST
            last = bench.run(
                f"ppo{at}",
                method=find_method("ppo"),
                reward=BOTH,
                steps=steps,
                model=model,
                seed=1000 * seed + at,
                **ASKED,
            )
            seen.append((gold(bench.policy(last), requests(), 100, split="train")["gold"], last))
        return _measured(bench, max(seen, key=lambda s: s[0])[1])


def _measured(bench: Bench, run: Path | None) -> Measured:
    return bench.measured(run, "instructions", 200, gold, level=1, think=False, sampling=HOW)


claim(
    Claim(
        id="constrained-rlhf",
        title="Constrained RLHF",
        paper="arXiv:2310.04373",
        family="reward-shaping-safety",
        says="A sum of rewards is over-optimised: past a point of each, more of it lowers the true quality. PPO that holds each reward at its "
        "point, which a search finds within one run by looking at the true metric, ends higher.",
        experiment="The embedded model answers small requests; rewards are warm words and marks, a plain count, and whether the request is met. gold: a hidden taste "
        "on 200 held-out requests, which likes nine words, three marks of warmth, courtesy, and no word twice. The registered plan: 6 tries of 6 "
        "steps with points that Nelder-Mead proposes, judged by the taste on training requests, then 12 steps at the best; PPO on the sum for as many "
        "steps; and the same stopped where the taste, asked as often, liked it best.",
        arms={"constrained": constrained, "sum": summed, "sum, stopped": stopped},
        checks=(
            Check("worth more than the sum", "gold", "constrained", "sum"),
            Check("no worse than stopping in time", "gold", "constrained", "sum, stopped", margin=-0.1),
        ),
        seeds=tuple(range(400, 408)),
        level="pocket",
        shares=(Shared("samples"), Shared("updates")),
        tried="Attempt 1 trained lookup tables, and measured the distance to points that it was given. On seed 100 with counts of words and of warmth as rewards and 36 "
        "steps: constrained -0.32, the sum -0.36, the sum stopped in time -0.02 (start -0.37): tries of 4 steps whose learning rate fell to 0 each time hardly "
        "moved the policy, and the sum had little to lose. Now tries keep their learning rate and have 6 steps, and one of the rewards is the "
        "task's grade, so that there is something to gain before there is something to lose. One look at "
        "that on seed 101, after which nothing was changed: constrained 0.39, the sum 0.51.",
    ),
    __file__,
)
