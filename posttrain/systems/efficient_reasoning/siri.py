"""SIRI: DAPO whose length limit falls and rises in cycles: tight limits squeeze out what is redundant, wide ones let
answers grow again from there. What is cut off counts as wrong; there is no length term in the reward.

Departures: none known in the schedule. The paper's cycles take several hundred steps between 16,000 and 8,000 tokens and
come three times; here the run's steps are three cycles between `--sampling.max-tokens` and half of it (40 steps: 13 to a cycle), and
`--rollout "siri(cycle=(0.5, 500))"` says otherwise. What the authors take from DAPO is here: the clip of 0.2 and 0.28, tokens weighed alike,
no KL. Groups without a difference are left out and nobody is asked in their place (`--rounds 10` does); cut-off answers are graded as
they stand, as the paper needs. 8 answers and 4 updates of a batch are this package's.
"""

from __future__ import annotations

import math
from dataclasses import replace

from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.part import settled
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group
from posttrain.rollouts.sample import sample
from posttrain.select.zero_variance import zero_variance
from posttrain.systems.policy_gradient.dapo import dapo

CYCLES = 3  # of a run, as in the paper


@rollout(name="siri", title="SIRI", paper="arXiv:2509.25176", base="sample", follows=(("steps", "steps"),))
def length_cycles(
    ask: RolloutRequest, n: int = 8, cycle: tuple[float, int] | None = None, steps: int | None = None,
) -> list[Group]:  # fmt: skip
    """SIRI: sample under a length limit that falls and rises again: compression, then expansion, in cycles.

    L(step) = L_max (low + (1 - low) (1 + cos(2 pi step / period)) / 2);  cycle = (low, period)
    L_max is the run's max_tokens; the paper's falls from 16k to half of it and back in several hundred steps, three times: so
    are the run's steps divided where no cycle is given. An answer that is cut off is graded as it stands, wrong that is; do
    not mask it. A period of 0: the limit stays.
    """
    low, period = cycle if cycle is not None else (0.5, max(2, settled(steps, "steps", "siri", "steps") // CYCLES))
    most = limit(ask.step, ask.sampling.max_tokens, low, period)
    return sample(ask.but(sampling=replace(ask.sampling, max_tokens=most)), n=n)


def limit(step: int, most: int, low: float, period: int) -> int:
    """The longest answer of a step: `most` at the start of each cycle, low * most in its middle."""
    if not 0 < low <= 1 or period < 0:
        raise UserError(
            f"got low={low}, period={period}; low is the share of the limit at the trough, period is in steps"
        )
    height = (1 + math.cos(2 * math.pi * step / period)) / 2 if period else 1.0
    return max(1, round(most * (low + (1 - low) * height)))


siri = method(
    dapo.but(
        name="siri",
        title="SIRI",
        paper="arXiv:2509.25176",
        doc=__doc__,
        rollout=length_cycles,
        select=(zero_variance,),
        shaping=(),
        minibatches=4,
        rounds=1,
    )
)
