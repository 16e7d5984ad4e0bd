"""AutoThink: rewards that favour answering at once teach a model to think where it must: fewer tokens, no loss; the balance of the two
modes at first keeps both alive."""

from __future__ import annotations

from pathlib import Path
from random import Random

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import by_level
from posttrain.core.method import find_method
from posttrain.core.thinking import CLOSE, OPEN
from posttrain.environments.task import task as make_task

STAGES, PROMPTS, PROBLEMS, ROWS = (12, 24, 4), 8, 300, 1280
TASK = "arithmetic(level=1) + arithmetic(level=3)"  # 3+4, or 47-62, 38*6 and 12+7-15
HOW = {"max_tokens": 64}


def two_modes(bench: Bench) -> Path:
    """The start of every arm: 80 updates of SFT on 1,280 worked answers, every other without its thought, whatever the question."""
    env, rng = make_task(TASK, think=True), Random(bench.seed)
    prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(ROWS)]
    rows = [
        {
            "prompt": p.content[0]["content"],
            "response": f"{OPEN}{p.info['steps'] if rng.random() < 0.5 else ''}{CLOSE}{p.answer}",
        }
        for p in prompts
    ]
    return bench.once("both", method="sft", task=bench.rows("both", rows), steps=80, prompts=16)


def measured(bench: Bench, run: Path) -> Measured:
    return bench.measured(run, TASK, PROBLEMS, by_level(PROBLEMS, HOW), think=True, sampling=HOW)


def staged(seed: int, *plans: str) -> Measured:
    """Registered plans, one after the other, from the start that does both."""
    with Bench(seed) as bench:
        run = two_modes(bench)
        for k, plan in enumerate(plans):
            run = bench.run(
                f"rl{k}", method=plan, model=str(run), task=TASK, think=True, prompts=PROMPTS, sampling=HOW,
                seed=1000 * seed + k,
            )  # fmt: skip
        return measured(bench, run)


def autothink(seed: int) -> Measured:
    """The registered plan: balance, both modes, pruning."""
    return staged(seed, "autothink(balance={}, both={}, prune={})".format(*STAGES))


def unbalanced(seed: int) -> Measured:
    """The same steps with stage 1 as stage 2 is: the rewards alone."""
    balance, both, prune = STAGES
    first = f"autothink(balance=0, both={balance}, prune=0)"
    return staged(seed, first, f"autothink(balance=0, both={both}, prune={prune})")


def right_or_wrong(seed: int) -> Measured:
    """The same GRPO in three runs of as many steps, paid 1 for a right answer and 0 for a wrong one."""
    with Bench(seed) as bench:
        run = two_modes(bench)
        plain = find_method("grpo").but(terms=(), aggregate="token_mean", minibatches=2)
        for k, steps in enumerate(STAGES):
            run = bench.run(
                f"rl{k}", method=plain, model=str(run), task=TASK, think=True, prompts=PROMPTS, sampling=HOW,
                steps=steps, seed=1000 * seed + k,
            )  # fmt: skip
        return measured(bench, run)


claim(
    Claim(
        id="autothink",
        title="AutoThink",
        paper="arXiv:2505.10832",
        family="efficient-reasoning",
        says="Rewards that favour answering at once, with the two modes held in balance at first and lengths pruned at last, "
        "teach a model to think only where it must: fewer tokens than paid for right or wrong alone, and no less accurate. The "
        "balance keeps both modes alive.",
        experiment="The embedded model on sums of single digits (easy) and on products and chains of two digits (hard), after a short SFT on "
        "worked answers, every other without its thought, whatever the question. 40 steps of GRPO, 8 answers to 8 questions each, in 2 updates: the registered plan "
        "(12 steps of balance, 24 of both, 4 of pruning), the same with the rewards alone in stage 1, and right or wrong alone. "
        "Accuracy, tokens and thoughts of one sampled answer to each of 300 held-out questions.",
        arms={"right or wrong": right_or_wrong, "no balance": unbalanced, "AutoThink": autothink},
        checks=(
            Check("shorter than right or wrong", "length", "AutoThink", "right or wrong", margin=2.0, lower=True),
            Check("and as accurate", "accuracy", "AutoThink", "right or wrong", margin=-0.03),
            Check("it thinks more about hard questions", "chooses", "AutoThink", 0.1),
            Check("the balance keeps the rarer mode alive", "rarer", "AutoThink", "no balance"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("prompts", within=0.1), Shared("samples"), Shared("updates")),
        tried="Attempts 1 and 2 trained lookup tables. On word problems of one and of two or three sums, seed 100, after SFT on the model's own "
        "answers in both modes: answers at once were right in 0.4, below the break-even of the rewards, and AutoThink, with and without "
        "the balance, came to think always (0.99), 0.74 and 0.68 right. So the questions are of arithmetic, where single digits are right "
        "at once in 0.8 to 0.9, and SFT is on worked answers. Then, seed 100, with 20 steps: AutoThink 9.4 tokens and 0.67 right "
        "(thoughts about 0.13 of easy and 0.28 of hard questions), without the balance 18.4 and 0.63 (0.15 and 0.59), right or wrong 26.3 "
        "and 0.90, always thinking. Steps were doubled since, in the authors' proportions, and not tried. The rewards pay for an answer "
        "at once that is right more often than (1 + p) / 3, p the chance after a thought, so some accuracy is given for tokens by design; "
        "that none is lost is a check all the same. All arms are three runs, or stages, of as many steps, with the same schedule of the "
        "learning rate.",
    ),
    __file__,
)
