"""IcePop: GRPO without the tokens on which sampler and trainer disagree either way, the others corrected.

Departures: the paper corrects for an inference engine that differs from the trainer of a large mixture of experts. Here sampler and trainer share the weights and agree up to rounding, so that by default hardly any token is left out
and this is GRPO's clip without a KL. It differs where they do: `--rollout "rounded(bits=4)"` samples from weights of 4 bits, as a fast
engine does, and answers may be logged. The limits 0.5 and 5 are the
paper's; its multi-stage recipe is not here.
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
    name="icepop",
    title="IcePop",
    paper="arXiv:2510.18855",
    base="mis",
    laws=("zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT", "ref_logp_BT"),
)
def two_sided_mask(
    batch: Batch, floor: float = 0.5, cap: float = 5.0, low: float = 0.2, high: float | None = None
) -> Tensor:  # fmt: skip
    """IcePop: tokens on which trainer and sampler disagree either way are left out, the others corrected.

    L = -w [floor <= w <= cap] min(r A, clip(r) A);  w = prox / old of the token;  r = pi / prox
    """
    weight_BT = sampler_ratio(batch)
    return torch.where((weight_BT >= floor) & (weight_BT <= cap), weight_BT, 0.0) * near(batch, low, high)


icepop = method(
    grpo.but(
        name="icepop", title="IcePop", paper="arXiv:2510.18855", doc=__doc__,
        loss=two_sided_mask, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    )
)  # fmt: skip
