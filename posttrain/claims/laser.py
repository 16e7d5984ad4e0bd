"""LASER: a bonus for being right within a target length shortens answers where cutting them off or ranking them by length
costs accuracy; targets that follow difficulty (LASER-D) shorten easy questions most and leave hard ones their thoughts."""

from __future__ import annotations

from functools import partial

from posttrain.core.method import Method
from posttrain.lab.claim import Check, Claim, claim
from posttrain.lab.thinking import Thinking, ramp
from posttrain.methods.laser import adaptive, laser, laser_d, laser_de
from posttrain.rewards.shaping.laser import laser as bonus

T, STEPS, COPIES = 24, 40, 8  # the window; steps of 8 answers to 8 questions of each of 3 kinds
TARGET = 8
plain = laser.but(shaping=())


def world(seed: int) -> Thinking:
    """Easy: 2 steps of work, then right in 95 of 100; medium: 6 steps, 65; hard: 12 steps, 35."""
    return Thinking(ramp([2, 6, 12], T, low=0.02, high=[0.95, 0.65, 0.35]), seed)


def train(seed: int, method: Method, longest: int = T, lr: float = 0.1) -> dict[str, float]:
    """40 steps from a policy that thinks too long; exact figures at the end. A shorter window cuts off in use as well."""
    w = world(seed)
    policy = w.start(stop=0.07)
    w.train(policy, method, STEPS, lr, copies=COPIES, longest=longest)
    found = w.exact(policy, longest)
    names = ("easy", "medium", "hard")
    return (
        w.told(policy, longest)
        | {f"{k}_accuracy": float(x) for k, x in zip(names, found["right_P"], strict=True)}
        | {f"{k}_length": float(x) for k, x in zip(names, found["length_P"], strict=True)}
    )


claim(
    Claim(
        id="laser",
        title="LASER",
        paper="arXiv:2505.15612",
        family="efficient-reasoning",
        says="A bonus for right answers within a target length cuts length at no cost in accuracy, where a window of that "
        "length costs hard questions; targets by difficulty cut easy ones further, and LASER-DE lets unsolved ones run on.",
        experiment="Letters of work, then the end: easy, medium and hard questions need 2, 6 and 12 letters, the window is 24 "
        "and the start policy writes 12. 40 steps of GRPO on 192 answers each; target and short window are 8. Exact figures.",
        arms={
            "right or wrong": partial(train, method=plain),
            "window of 8": partial(train, method=plain, longest=TARGET),
            "LASER": partial(train, method=laser.but(shaping=bonus.but(target=TARGET))),
            "LASER-D": partial(train, method=laser_d.but(shaping=adaptive.but(longest=T))),
            "LASER-DE": partial(train, method=laser_de.but(shaping=adaptive.but(longest=T, explore=True, n=T))),
        },
        checks=(
            Check("LASER is shorter", "length", "LASER", "right or wrong", margin=0.7, lower=True),
            Check("and no less accurate", "accuracy", "LASER", "right or wrong", margin=-0.01),
            Check("a short window costs hard questions", "hard_accuracy", "LASER", "window of 8", margin=0.06),
            Check("LASER-D is shorter than no bonus", "length", "LASER-D", "right or wrong", margin=0.7, lower=True),
            Check("and no less accurate than LASER", "accuracy", "LASER-D", "LASER", margin=-0.015),
            Check("it is shorter on easy questions", "easy_length", "LASER-D", "LASER", margin=0.05, lower=True),
            Check("LASER-DE thinks on where it is hard", "hard_length", "LASER-DE", "LASER-D", margin=0.8),
            Check("and no less accurate", "accuracy", "LASER-DE", "LASER-D", margin=-0.01),
        ),
        seeds=tuple(range(20, 30)),
        tried="Set on seeds 100-102, learning rates 0.05 to 0.2. A first record (seeds 0-5, half the answers a step, learning "
        "rate 0.2, wider margins on length) showed four of eight checks: lengths were mostly chance. A second one (seeds 10-14, "
        "these margins) showed seven; that LASER-DE thinks on, by 1.1 letters, had an interval from 0.2, margin 0.8. This one has "
        "ten new seeds. A group-normalised length "
        "penalty (that of GRPO-lambda in every group) of strength 0.2 to 0.5 is as good as LASER here, one of 1.0 loses 0.1 of "
        "accuracy: that a step beats any such penalty does not show, nor that LASER-D beats LASER overall, and right or wrong "
        "alone shortens too, since what is cut off is wrong. All letters are alike, so the repetition check of LASER-DE is "
        "switched off (n as long as the window); it is tested by hand.",
    ),
    __file__,
)
