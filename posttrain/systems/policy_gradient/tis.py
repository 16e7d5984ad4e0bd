"""TIS: GRPO corrected for a sampler that is not quite the trainer (another engine or precision), weights truncated at 2.

Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".

Departures: the authors correct for an inference engine that is not the trainer. Here sampler and trainer share the weights and agree up to rounding, so that by default the weights are 1
and this is GRPO's clip without a KL. It differs where they do: `--rollout "rounded(bits=4)"` samples from weights of 4 bits, as a fast
engine does, and answers may be logged. The cap 2 is theirs.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.decoupled_ppo import near, sampler_ratio
from posttrain.methods.grpo import grpo
from posttrain.weights.reference import reset


@policy_loss(
    name="tis",
    title="TIS",
    base="decoupled_ppo",
    laws=("zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT", "ref_logp_BT"),
)
def truncated_weight(
    batch: Batch, cap: float = 2.0, level: str = "token", low: float = 0.2, high: float | None = None
) -> Tensor:
    """TIS (Yao et al. 2025, FlashRL): PPO corrected for a sampler that is not quite the trainer, by truncated weights.

    L = -min(w, cap) min(r A, clip(r) A);  w = prox / old, of the token or (level="sequence") of the answer;  r = pi / prox
    """
    return sampler_ratio(batch, level).clamp(max=cap) * near(batch, low, high)


tis = method(
    grpo.but(
        name="tis", title="TIS", paper="", doc=__doc__,
        loss=truncated_weight, reference=reset.but(every=1), terms=(), minibatches=4,  # type: ignore[attr-defined]
    )
)  # fmt: skip
