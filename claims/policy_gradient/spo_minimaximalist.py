"""SPO: where preferences go in circles, win rates against oneself lead nearer to the minimax winner than a reward model does."""

from __future__ import annotations

from functools import partial

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.circle import HOW, exploited, judge, measured, questions, reward_model

STEPS, LABELS, KL = 40, 1000, 0.1
ASKED = {"prompts": 5, "sampling": HOW}


def spo(seed: int, scalar: bool = False) -> Measured:
    """The registered plan. scalar: a reward model of 1,000 labels judges, by the difference of its scores (Bradley-Terry), in place of the
    judge who gave them."""
    with Bench(seed) as bench:
        who = str(reward_model(bench, LABELS)) if scalar else judge(bench)
        plan = f"spo-minimaximalist(steps={STEPS}, kl={KL})"
        return measured(bench, bench.run("spo", method=plan, env=questions(), reward=who, **ASKED))


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return Measured(exploited(bench, bench.policy(None)), {}, {})


claim(
    Claim(
        id="spo-minimaximalist",
        title="SPO (minimaximalist)",
        paper="arXiv:2401.04056",
        family="policy-gradient",
        says="With the win rate against the policy's own samples as reward, one learner playing itself approaches the minimax winner; where "
        "preferences are intransitive, RLHF through a reward model does not.",
        experiment="The embedded model names an animal, a fruit, a colour, a drink, a tool, each of 5 to 10 about equally often. A judge, given as a "
        "file, has three names of each beat one another in an uneven ring (75 to 95 in 100) and beat all others (90). 40 steps of 8 answers "
        "to the 5 questions: the registered plan with a KL price of 0.1, and the same with a reward model as judge, trained on 1,000 labels of "
        "the start's answers by the first judge. exploitability: what the best single name wins against 200 answers of the last policy, above "
        "1/2.",
        arms={"SPO": spo, "reward model": partial(spo, scalar=True), "start": start},
        checks=(
            Check(
                "harder to exploit than with a reward model",
                "exploitability",
                "SPO",
                "reward model",
                margin=0.05,
                lower=True,
            ),
            Check("and than the start", "exploitability", "SPO", "start", margin=0.05, lower=True),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=tuple(Shared(what, arms=("SPO", "reward model")) for what in ("prompts", "samples", "updates")),
        tried="Attempts before this one trained lookup tables, with an entropy bonus.",
    ),
    __file__,
)
