"""SCoRe: two stages and a bonus for improvement teach a second attempt to correct the first, where paying both attempts does not."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.agents import AgentBench, Figure
from posttrain.environments.data import data
from posttrain.environments.workshop import workshop
from posttrain.systems.agents_multiturn.score_self_correct import TwoAttempts, corrections

ROWS, STEPS, LEVEL, PROBLEMS = 400, 20, 1, 200


def asked(split: str, n: int) -> list[dict[str, str]]:
    """Sums that are to be answered at once."""
    prompts = [workshop("second_try", LEVEL).prompt(i, split) for i in range(n)]
    return [{"question": p.last, "answer": str(p.answer)} for p in prompts]


def figure(name: str) -> Figure:
    return lambda made: corrections(list(made))[name]


def trained(seed: int, plan: str) -> Measured:
    """The registered plan on sums, or the start where none is named; both attempts of held-out sums."""
    with AgentBench(seed) as bench:
        rows = asked("train", ROWS)
        run = bench.run("run", method=plan, task=bench.rows("sums", rows)) if plan else None
        env = data({"train": rows[:8], "test": asked("test", PROBLEMS)})
        figures = {k: figure(k) for k in ("attempt_1", "attempt_2", "gain", "spoiled")}
        return bench.looked(run, TwoAttempts(env, env.grade), PROBLEMS, figures)


claim(
    Claim(
        id="score-self-correct",
        title="SCoRe",
        paper="arXiv:2409.12917",
        family="agents-multiturn",
        says="A first stage that moves only the second attempt, and a bonus for improving on the first, make a model correct itself; RL that "
        "just pays both attempts raises both and leaves the second little better than the first.",
        experiment="pocket-2 on sums that it is to answer at once and then once more, told that there may be an error. The registered plan, 20 steps of "
        "each stage on 8 sums with 8 episodes, against 40 steps of the same RL without the first stage and without the bonus. gain: accuracy "
        "of the second attempt less that of the first, on 200 held-out sums.",
        arms={
            "SCoRe": partial(trained, plan=f"score-self-correct(first={STEPS}, second={STEPS})"),
            "both paid": partial(trained, plan=f"score-self-correct(first=0, second={2 * STEPS}, alpha=0.0)"),
            "start": partial(trained, plan=""),
        },
        checks=(
            Check("the second attempt gains more than when both are paid", "gain", "SCoRe", "both paid", margin=0.03),
            Check("and more than at the start", "gain", "SCoRe", "start", margin=0.03),
            Check("the second attempt is no worse", "attempt_2", "SCoRe", "both paid", margin=-0.05),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("samples", arms=("SCoRe", "both paid")), Shared("updates", arms=("SCoRe", "both paid"))),
        tried="On seed 100, with one step on a handful of rows and pocket-2 half trained, to see that every arm runs; nothing was tuned, and "
        "the sizes above were not tried on any seed.",
    ),
    __file__,
)
