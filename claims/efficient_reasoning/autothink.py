"""AutoThink: rewards that favour answering at once teach a model to think where it must: fewer tokens, no loss; the balance of the two
modes at first keeps both alive."""

from __future__ import annotations

from pathlib import Path

from claims.machinery.arms import Bench, Measured
from claims.machinery.claim import Check, Claim, Shared, claim
from claims.worlds.long_thoughts import by_level
from posttrain.core.method import find_method
from posttrain.core.sampling import Sampling
from posttrain.core.thinking import CLOSE, OPEN
from posttrain.environments.school import DIRECT, THINK
from posttrain.environments.task import task as make_task

STAGES, PROMPTS, PROBLEMS, ROWS = (8, 12, 4), 8, 300, 240
TASK = "word_problems(level=1) + word_problems(level=4)"  # one sum, or two and three
HOW = {"max_tokens": 48}


def two_modes(bench: Bench) -> Path:
    """The start of every arm: 30 updates of SFT on 240 of the embedded model's own answers with a thought and 240 without, whatever the
    question, so that it does either about every other time."""
    policy, rows = bench.policy(None), []
    for think in (True, False):
        env = make_task(TASK, think=think)
        prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(ROWS)]
        made = policy.sample(prompts, 1, Sampling(max_tokens=48), bench.seed, -1)
        for p, some in zip(prompts, made, strict=True):
            asked, text = p.content[0]["content"].removesuffix(DIRECT).removesuffix(THINK), some[0].text
            rows.append({"prompt": asked + THINK, "response": text if think else f"{OPEN}{CLOSE}{text}"})
    return bench.run("both", method="sft", task=bench.rows("both", rows), steps=30, prompts=16)


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


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return measured(bench, two_modes(bench))


RL = ("right or wrong", "no balance", "AutoThink")

claim(
    Claim(
        id="autothink",
        title="AutoThink",
        paper="arXiv:2505.10832",
        family="efficient-reasoning",
        says="Rewards that favour answering at once, with the two modes held in balance at first and lengths pruned at last, "
        "teach a model to think only where it must: fewer tokens than paid for right or wrong alone, and no less accurate. The "
        "balance keeps both modes alive.",
        experiment="The embedded model on word problems of one sum (easy) and of two and three (hard), after a short SFT on its own answers with "
        "and without a thought, whatever the question. 24 steps of GRPO, 8 answers to 8 questions each, in 2 updates: the registered plan "
        "(8 steps of balance, 12 of both, 4 of pruning), the same with the rewards alone in stage 1, and right or wrong alone. "
        "Accuracy, tokens and thoughts of one sampled answer to each of 300 held-out questions.",
        arms={"start": start, "right or wrong": right_or_wrong, "no balance": unbalanced, "AutoThink": autothink},
        checks=(
            Check("shorter than right or wrong", "length", "AutoThink", "right or wrong", margin=2.0, lower=True),
            Check("and as accurate", "accuracy", "AutoThink", "right or wrong", margin=-0.03),
            Check("it thinks more about hard questions", "chooses", "AutoThink", 0.1),
            Check("the balance keeps the rarer mode alive", "rarer", "AutoThink", "no balance"),
        ),
        seeds=tuple(range(200, 210)),
        level="pocket",
        shares=(Shared("samples", arms=RL), Shared("updates", arms=RL), Shared("prompts", arms=RL)),
        tried="",
    ),
    __file__,
)
