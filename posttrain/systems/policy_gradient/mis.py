"""MIS: GRPO without the answers on which sampler and trainer disagree too much, the others corrected.

Liu et al. 2025, "When speed kills stability: demystifying RL collapse from the training-inference mismatch".

Departures: the authors correct for an inference engine that is not the trainer. Here sampler and trainer share the weights and agree up to rounding, so that by default no answer is left out
and this is GRPO's clip without a KL. It differs where they do: `--rollout "rounded(bits=4)"` samples from weights of 4 bits, as a fast
engine does, and answers may be logged. The cap 2 is theirs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.decoupled_ppo import near, sampler_ratio
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import reset


@policy_loss(
    name="mis",
    title="MIS",
    base="tis",
    laws=("zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT", "ref_logp_BT"),
)
def masked_answers(
    batch: Batch, cap: float = 2.0, level: str = "sequence", low: float = 0.2, high: float | None = None
) -> Tensor:
    """MIS (Liu et al. 2025, "When speed kills stability"): answers the sampler found far too unlikely are left out.

    L = -w [w <= cap] min(r A, clip(r) A);  w = prox / old, of the answer or (level="token") of the token;  r = pi / prox
    """
    weight_BT = sampler_ratio(batch, level)
    return torch.where(weight_BT <= cap, weight_BT, 0.0) * near(batch, low, high)


mis = method(
    grpo.but(
        name="mis", title="MIS", paper="", doc=__doc__,
        loss=masked_answers, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    )
)  # fmt: skip
