"""Decoupled PPO: for stale answers: clipped against an average of past weights, weighted for who sampled them.

The proximal policy is PPO-EWMA's: a moving average of the weights, which lags behind the sampler. Answers are clipped against it
and weighted for who sampled them, so that the size of a step does not depend on how old they are.

Departures: the paper moves the average after every optimiser step by 8/9, so that it is 8 updates old on the average, and keeps that
age where updates are counted otherwise; here it moves once per step of 4 updates by 2/3, which is 2 steps old. It trains agents of
games with a critic and GAE, here GRPO's credit. With `--reference "reset(every=1)"` the proximal policy is the weights as the step
begins, and in one process the correction is 1 up to rounding; that suits stale, logged or rounded samples
(`--rollout "rounded(bits=4)"`). The correction is not truncated (`tis` is).
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.policy.decoupled_ppo import decoupled_ppo as behaviour_corrected
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import ema

decoupled_ppo = method(
    grpo.but(
        name="decoupled-ppo", title="Decoupled PPO", paper="arXiv:2110.00641", doc=__doc__,
        loss=behaviour_corrected, reference=ema.but(decay=2 / 3), terms=(), minibatches=4,  # type: ignore[attr-defined]
    )
)  # fmt: skip
