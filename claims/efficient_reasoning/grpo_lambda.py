"""GRPO-lambda: a length penalty on every group makes accuracy collapse as answers shorten; on the best solved share of
groups alone it shortens and accuracy holds."""

from __future__ import annotations

from functools import partial

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.thinking import Thinking, ramp
from posttrain.core.registry import Part
from posttrain.systems.efficient_reasoning.grpo_lambda import grpo_lambda
from posttrain.systems.efficient_reasoning.grpo_lambda import short_where_solved as switch

T, STEPS, COPIES = 20, 60, 3  # the window; steps of 8 answers to 3 questions of each of 6 kinds
NEED = (1, 2, 4, 6, 8, 10)


def train(seed: int, shaping: tuple[Part, ...], lr: float = 0.1) -> dict[str, float]:
    """GRPO without its KL; exact figures at the end and best accuracy on the way, looked at every 5 steps."""
    w = Thinking(ramp(NEED, T), seed)
    policy = w.start(stop=0.07)
    best = [0.0]

    def look(step: int) -> None:
        if step % 5 == 4:
            best.append(w.told(policy)["accuracy"])

    w.train(policy, grpo_lambda.but(shaping=shaping, terms=()), STEPS, lr, copies=COPIES, after=look)
    found = w.exact(policy)
    hard = {"hard_accuracy": float(found["right_P"][-2:].mean()), "easy_length": float(found["length_P"][:2].mean())}
    return w.told(policy) | hard | {"lost": max(best) - best[-1]}


claim(
    Claim(
        id="grpo-lambda",
        title="GRPO-lambda",
        paper="arXiv:2505.18086",
        family="efficient-reasoning",
        says="A length penalty on all right answers shortens them until accuracy falls; put on the 20% of groups that are "
        "solved best, it shortens answers and accuracy stays that of right or wrong alone.",
        experiment="Letters of work, then the end; six kinds of questions need 1 to 10 letters of 20. 60 steps of GRPO on 144 "
        "answers each, alpha 0.2 in both length arms; exact figures, and what was lost since the best of 12 looks.",
        arms={
            "right or wrong": partial(train, shaping=()),
            "length penalty": partial(train, shaping=(switch.but(top=1.0),)),
            "GRPO-lambda": partial(train, shaping=(switch,)),
        },
        checks=(
            Check("shorter than right or wrong", "length", "GRPO-lambda", "right or wrong", margin=0.7, lower=True),
            Check("and as accurate", "accuracy", "GRPO-lambda", "right or wrong", margin=-0.03),
            Check("more accurate than the penalty", "accuracy", "GRPO-lambda", "length penalty", margin=0.03),
            Check("most of all on hard questions", "hard_accuracy", "GRPO-lambda", "length penalty", margin=0.05),
            Check("the penalty loses what it had", "lost", "length penalty", "GRPO-lambda", margin=0.003),
        ),
        seeds=tuple(range(5)),
        tried="Set on seeds 100-101: learning rates 0.05 to 0.2 (the order of the arms is the same), alpha 0.2, 0.5 and 1.0: "
        "the penalty on all groups ends at 0.86, 0.80 and 0.67, the switch at 0.93 with each. The penalty's answers are shorter "
        "(5.4 letters against 6.1): the switch is not ahead in length. The collapse is a slow fall here, not abrupt, and how "
        "many more steps the switch can train for was not measured.",
    ),
    __file__,
)
