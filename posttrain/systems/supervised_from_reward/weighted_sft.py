"""Weighted SFT: imitate written answers, each as much as the column `weight` of its row says; 1 where it says nothing, 0 leaves it out.

L = -w log pi, the mean over all tokens: weights are relative, and twice the weight is twice the pull. What they stand for is the data's: trust in a
source (1 and 0.1), exp(reward / tau) for reward-weighted regression, how often a row should count.

Departures: none known, as it has no paper of its own; the sum is divided by the number of tokens, not by the sum of the weights.
"""

from __future__ import annotations

import math

from posttrain.advantages.outcome import outcome
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group
from posttrain.losses.policy.reinforce import reinforce
from posttrain.methods.sft import sft
from posttrain.rollouts.written import demonstrations


@rollout(data="demonstrations")
def weighed(ask: RolloutRequest) -> list[Group]:
    """Weighed demonstrations: the answer that comes with the prompt, worth `info["weight"]`; 1 where there is none."""
    groups = demonstrations(ask)
    for g in groups:
        told = g.prompt.info.get("weight", 1.0)
        weight = float(told) if isinstance(told, (int, float)) and not isinstance(told, bool) else math.nan
        if not 0 <= weight < math.inf:
            raise UserError(f"prompt {g.prompt.id!r} has the weight {told!r}; it is a number of 0 or more")
        for r in g.rollouts:
            r.reward = weight
    return groups


weighted_sft = method(
    sft.but(name="weighted-sft", title="Weighted SFT", doc=__doc__, rollout=weighed, advantage=outcome, loss=reinforce)
)
