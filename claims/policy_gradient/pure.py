"""PURE: RL on the sum of process rewards is hacked; on their minimum it teaches to solve."""

from __future__ import annotations

from claims.machinery.arms import Bench, Measured, run_arm
from claims.machinery.claim import Check, Claim, Shared, claim
from posttrain.systems.policy_gradient.pure import min_form_rl

STEPS, PRM_STEPS, PROMPTS, PROBLEMS = 20, 40, 16, 300
TASK = "word_problems"
ASKED = {"prompts": PROMPTS, "think": True, "sampling": {"max_tokens": 48}}


def paid_by_steps(seed: int, form: str) -> Measured:
    """The registered plan, which labels steps, trains a process reward model on them, and then pays by it alone."""
    plan = f"pure(steps={STEPS}, prm='train', prm_steps={PRM_STEPS}, level='word', checked=0, form='{form}')"
    return run_arm(seed, method=plan, task=TASK, problems=PROBLEMS, **ASKED)  # type: ignore[arg-type]


def paid_by_answers(seed: int) -> Measured:
    """The same RL paid by checked answers alone."""
    alone = min_form_rl(form="sum").but(name="answers", advantage="rloo")
    return run_arm(seed, method=alone, task=TASK, problems=PROBLEMS, steps=STEPS, **ASKED)  # type: ignore[arg-type]


def start(seed: int) -> Measured:
    with Bench(seed) as bench:
        return bench.measured(None, TASK, PROBLEMS, think=True, sampling=ASKED["sampling"])


claim(
    Claim(
        id="pure",
        title="PURE",
        paper="arXiv:2504.15275",
        family="policy-gradient",
        says="RL on summed process rewards collapses at once: steps that score well are piled up and solve nothing. With the value of a chain "
        "defined as its worst step (a softmin transform of the rewards) the same process rewards teach to solve, nearly as well as "
        "checked answers.",
        experiment="The embedded model on word problems with a written chain of thought. The registered plan: 40 steps train a process "
        "reward model on own answers, each of whose equations is labelled by finishing it 4 times; then 20 steps of 8 answers to 16 "
        "questions are paid by that model alone (checked=0, the paper's PURE-PRM), in min form and summed. A third arm is paid by checked "
        "answers alone. Accuracy, which the first two never see in RL, of one sampled answer to each of 300 held-out problems.",
        arms={
            "min": lambda seed: paid_by_steps(seed, "min"),
            "sum": lambda seed: paid_by_steps(seed, "sum"),
            "checked answers": paid_by_answers,
            "start": start,
        },
        checks=(
            Check("min form solves more than the start", "accuracy", "min", "start", margin=0.05),
            Check("and more than the sum", "accuracy", "min", "sum", margin=0.05),
            Check("nearly as good as checked answers", "accuracy", "min", "checked answers", margin=-0.1),
        ),
        seeds=tuple(range(200, 208)),
        level="pocket",
        shares=(
            Shared("samples", arms=("min", "sum", "checked answers")),
            Shared("updates", arms=("min", "sum", "checked answers")),
        ),
        tried="Attempt 1 trained lookup tables with a process reward of a known flaw. On the embedded model, seed 100, with a process reward model of 20 "
        "steps and 25 steps of RL: min 0.37, sum 0.08, checked answers 0.95, start 0.47: the sum collapses at once, but min form loses too. The "
        "paper's model is a strong one, and its authors stop before it is hacked; so twice the labels and half the steps. Then, seed 100: min 0.47, sum 0.44, checked answers 0.87, "
        "start 0.48: 12 steps are too few for either to move, hence 20; margins were set before any of this.",
    ),
    __file__,
)
