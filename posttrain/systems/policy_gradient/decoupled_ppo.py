"""Decoupled PPO: for stale answers: clipped against the weights as the step begins, weighted for who sampled them.

Departures: the paper's proximal policy is a moving average of the weights (PPO-EWMA), with a critic and GAE, on
games; here it is the weights as the step begins, with GRPO's credit and no critic. Where one process samples and
learns in turn, the sampler is that policy: the correction is 1 up to rounding and this is GRPO's clip without a KL.
It differs for answers that are stale, logged or replayed. The correction is not truncated (`tis` is).
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.policy.decoupled_ppo import decoupled_ppo as behaviour_corrected
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import reset

decoupled_ppo = method(
    grpo.but(
        name="decoupled-ppo", title="Decoupled PPO", paper="arXiv:2110.00641", doc=__doc__,
        loss=behaviour_corrected, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    )
)  # fmt: skip
