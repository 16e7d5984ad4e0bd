"""Nash-MD: an opponent between oneself and the reference, and a judge of pairs, keep the last policy nearer to the equilibrium."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.circle import HOW, judge, measured, questions, reward_model

STEPS, LABELS, TAU = 40, 1000, 0.1
ASKED = {"prompts": 5, "sampling": HOW}


def nash(seed: int, beta: float = 0.125, scalar: bool = False) -> Measured:
    """The registered plan; beta: how much of the reference is in the opponent. scalar: a reward model of 1,000 labels judges, by the
    difference of its scores (Bradley-Terry), in place of the judge who gave them."""
    with Bench(seed) as bench:
        who = str(reward_model(bench, LABELS)) if scalar else judge(bench)
        plan = f"nash-md(steps={STEPS}, beta={beta}, tau={TAU})"
        return measured(bench, bench.run("nash", method=plan, env=questions(), reward=who, **ASKED))


claim(
    Claim(
        id="nash-md",
        title="Nash-MD",
        paper="arXiv:2312.00886",
        family="policy-gradient",
        says="A policy gradient against the geometric mixture of policy and reference approaches, in its last policy, the Nash equilibrium of the "
        "regularised preference game; the mixture does better than self-play, and RLHF on scores aims elsewhere.",
        experiment="The embedded model names an animal, a fruit, a colour, a drink, a tool, each of 5 to 10 about equally often. A judge, given as a "
        "file, has three names of each beat one another in an uneven ring (75 to 95 in 100) and beat all others (90). 40 steps of 8 answers "
        "to the 5 questions: the registered plan with tau 0.1, the same with beta 0 (self-play), and the same with a reward model as judge, "
        "trained on 1,000 labels of the start's answers by the first judge. exploitability: what the best single name wins against 200 answers "
        "of the last policy, above 1/2.",
        arms={"Nash-MD": nash, "self-play": partial(nash, beta=0.0), "reward model": partial(nash, scalar=True)},
        checks=(
            Check(
                "harder to exploit than with a reward model",
                "exploitability",
                "Nash-MD",
                "reward model",
                margin=0.05,
                lower=True,
            ),
            Check("harder to exploit than self-play", "exploitability", "Nash-MD", "self-play", margin=0.0, lower=True),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts"), Shared("samples"), Shared("updates")),
        tried="Attempts before this one trained lookup tables, with tau 0.1 and four answers of the opponent.",
    ),
    __file__,
)
