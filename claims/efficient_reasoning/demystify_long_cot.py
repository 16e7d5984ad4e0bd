"""Demystifying long CoT: a cosine of the length keeps answers inside the window, a repetition penalty keeps them from
filling it with loops."""

from __future__ import annotations

from functools import partial

import torch

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.thinking import Thinking, ramp
from posttrain.advantages.gae import gae
from posttrain.core.registry import Part
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.cosine_length import cosine_length
from posttrain.rewards.shaping.repeats import repeats
from posttrain.rollouts.sample import sample

T, STEPS, COPIES, G = 20, 30, 2, 8  # the window; steps of 8 answers to 2 questions of each of 8 kinds
SOLVED = 3
COSINE = cosine_length.but(longest=T)
REPEATS = repeats.but(n=3, penalty=-0.5, gamma=0.9)  # summed and discounted at most -5, as -0.05 and 0.99 are


def world(seed: int) -> Thinking:
    """Three kinds that 3, 6 or 10 steps of work solve, five that work does not help; 6 letters of work, one idle."""
    return Thinking(torch.cat([ramp([3, 6, 10], T), ramp([10] * 5, T, high=0.1)]), seed, V=8)


def train(seed: int, shaping: tuple[Part, ...], lr: float = 0.1) -> dict[str, float]:
    """PPO as in the paper (lambda 1) with these rewards. Exact figures at the end; over: cut off while training."""
    w = world(seed)
    policy = w.start(stop=0.06, idle=0.4)
    method = ppo.but(rollout=sample.but(n=G), advantage=gae.but(lam=1.0), shaping=shaping)
    seen = w.train(policy, method, STEPS, lr, copies=COPIES)
    found = w.exact(policy)
    return {
        "accuracy": float(found["right_P"].mean()),
        "over": sum(x["truncated"] for x in seen) / STEPS,
        "solved_length": float(found["length_P"][:SOLVED].mean()),
        "unsolved_length": float(found["length_P"][SOLVED:].mean()),
        "unsolved_idle": float(found["idle_P"][SOLVED:].mean()),
    }


claim(
    Claim(
        id="demystify-long-cot",
        title="Demystifying long CoT",
        paper="arXiv:2502.03373",
        family="efficient-reasoning",
        says="With right or wrong alone answers overrun the window; a cosine of the length keeps them inside, shorter "
        "where right and longer where wrong, at no cost in accuracy. What it lengthens fills with loops, which a "
        "repetition penalty on the tokens removes.",
        experiment="Answers of up to 20 letters, work, idle or end; three kinds of questions that work solves and five "
        "that nothing does. 30 steps of PPO (lambda 1) on 128 answers each; accuracy, length and idle letters are exact.",
        arms={
            "right or wrong": partial(train, shaping=()),
            "cosine": partial(train, shaping=(COSINE,)),
            "cosine, repetition": partial(train, shaping=(COSINE, REPEATS)),
        },
        checks=(
            Check("fewer run over the window", "over", "cosine", "right or wrong", margin=0.003, lower=True),
            Check("no less accurate", "accuracy", "cosine", "right or wrong", margin=-0.01),
            Check("shorter where solved", "solved_length", "cosine", "right or wrong", margin=1.0, lower=True),
            Check("longer where not", "unsolved_length", "cosine", "right or wrong", margin=4.0),
            Check("which fills with idle letters", "unsolved_idle", "cosine", "right or wrong", margin=1.0),
            Check("the penalty cuts them", "unsolved_idle", "cosine, repetition", "cosine", margin=0.5, lower=True),
            Check("and costs no accuracy", "accuracy", "cosine, repetition", "right or wrong", margin=-0.01),
        ),
        seeds=tuple(range(10, 16)),
        tried="Set on seeds 100-103, learning rates 0.05 to 0.2. The penalty is scaled to the window: -0.5 and gamma 0.9 "
        "come to at most -5, as -0.05 and 0.99 do; with -0.05 a window of 20 shows next to nothing. A first record (seeds 0-5, "
        "one unsolvable kind, learning rate 0.2) showed all but the two checks on idle letters, which one kind leaves to "
        "chance; now there are five, the rate is 0.1, margins and checks are the same, the seeds are new. That overrunning "
        "worsens as training goes on does not show: a cut answer is wrong and a table learns that at once, so overruns are "
        "counted over the whole of training. SFT on long thoughts and noisy data are not part of it.",
    ),
    __file__,
)
