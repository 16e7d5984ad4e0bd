"""SPO: where preferences go in circles, win rates against oneself lead nearer to the minimax winner than a reward model does."""

from __future__ import annotations

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.circle import HOW, exploited, judge, measured, questions, reward_model
from posttrain.core.method import find_method

STEPS, LABELS, KL = 60, 2000, 0.01
ASKED = {"prompts": 5, "sampling": HOW}


def spo(seed: int) -> Measured:
    """The registered plan, asking the judge."""
    with Bench(seed) as bench:
        plan = f"spo-minimaximalist(steps={STEPS})"
        return measured(bench, bench.run("spo", method=plan, env=questions(), reward=judge(bench), **ASKED))


def rlhf(seed: int) -> Measured:
    """The same policy gradient and KL price on the scores of a reward model of 2,000 labels."""
    with Bench(seed) as bench:
        model = reward_model(bench, LABELS)
        same = find_method("grpo").but(advantage="dr-grpo", terms=f"kl(coef={KL})")
        run = bench.run("rlhf", method=same, env=questions(), reward=str(model), steps=STEPS, **ASKED)
        return measured(bench, run)


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
        "file, has three names of each beat one another in an uneven ring (75 to 95 in 100) and beat all others (90). 60 steps of 8 answers "
        "to the 5 questions: the registered plan, asking the judge about its own answers; and the same policy gradient and KL price on the "
        "scores of a reward model, trained on 2,000 labels of the start's answers by the same judge. exploitability: what the best single "
        "name wins against 200 answers of the last policy, above 1/2.",
        arms={"SPO": spo, "RLHF": rlhf, "start": start},
        checks=(
            Check("harder to exploit than RLHF", "exploitability", "SPO", "RLHF", margin=0.05, lower=True),
            Check("and than the start", "exploitability", "SPO", "start", margin=0.05, lower=True),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=tuple(Shared(what, arms=("SPO", "RLHF")) for what in ("prompts", "samples", "updates")),
        tried="Attempts before this one trained lookup tables, with an entropy bonus.",
    ),
    __file__,
)
