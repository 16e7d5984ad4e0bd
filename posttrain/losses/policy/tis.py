from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss
from posttrain.losses.policy.decoupled_ppo import mismatch, near


@policy_loss(
    title="TIS", base="decoupled_ppo", reads=("ref_logp_BT",),
    laws=("zero_credit_no_gradient", "never_against_the_credit"),
)  # fmt: skip
def tis(batch: Batch, cap: float = 2.0, level: str = "token", low: float = 0.2, high: float | None = None) -> Tensor:
    """TIS (Yao et al. 2025, FlashRL): PPO corrected for a sampler that is not quite the trainer, by truncated weights.

    L = -min(w, cap) min(r A, clip(r) A);  w = prox / old, of the token or (level="sequence") of the answer;  r = pi / prox
    """
    return mismatch(batch, level).clamp(max=cap) * near(batch, low, high)
