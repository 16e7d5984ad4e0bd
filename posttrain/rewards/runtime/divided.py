"""Rewards of single answers, divided among the processes of a run: each asks about its share, and the shares are put together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from posttrain.core.types import Group
from posttrain.rewards.runtime.conventions import Answers
from posttrain.rewards.runtime.messages import Unreadable
from posttrain.rewards.runtime.outcome import Outcome
from posttrain.rewards.runtime.scorer import answers_of

Share = dict[
    str, tuple[list[Outcome] | None, float]
]  # by reward, outcomes of every world-th answer (None: not to be had so), seconds


def sampled(groups: list[Group]) -> Answers:
    """The answers of groups as rewards are asked about them."""
    rollouts = answers_of(groups)
    return Answers(
        [r.prompt for r in rollouts],
        [r.text for r in rollouts],
        lambda: [r.actions.tolist() for r in rollouts],
        [r.index for r in rollouts],
    )


def shared(scorer: Any, answers: Answers) -> Share:
    """What this process says of its answers. A reward whose own process cannot be sent the prompts is left to the first one."""
    out: Share = {}
    for name in scorer.singles:
        began = time.perf_counter()
        try:
            found: list[Outcome] | None = scorer.outcomes(name, answers)
        except Unreadable:
            found = None
        out[name] = found, time.perf_counter() - began
    return out


def together(shares: Sequence[Share], count: int) -> dict[str, tuple[list[Outcome], float]]:
    """By reward, the outcomes of all answers in their order and the seconds of the slowest process; only what all could say."""
    out: dict[str, tuple[list[Outcome], float]] = {}
    for name in shares[0] if shares else ():
        mine = [found for share in shares if (found := share[name][0]) is not None]
        if len(mine) == len(shares):
            dealt = [mine[i % len(mine)][i // len(mine)] for i in range(count)]
            out[name] = dealt, max(share[name][1] for share in shares)
    return out
