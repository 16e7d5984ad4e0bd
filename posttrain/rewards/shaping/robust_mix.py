from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import members, on_last
from posttrain.core.errors import UserError
from posttrain.core.registry import shaping
from posttrain.rewards.scorers.ensemble import worst_case


@shaping(title="Robust mix", paper="arXiv:2409.15360")
def robust_mix(batch: Batch, lam: float = 0.6, prefix: str = "") -> Tensor:
    """Robust mix (reward-robust RLHF): the nominal reward, mixed with the worst that any reward model says.

    R = lam r_nominal + (1 - lam) min_k r_k;  lam = 1 trusts, lam = 0 is the worst case
    Nominal: the reward as it is. Members: its components whose names begin with `prefix`; with none, nothing changes.
    """
    if not 0 <= lam <= 1:
        raise UserError(f"lam is {lam}; it is a share between 0 and 1")
    return on_last(lam * batch.returns_B + (1 - lam) * worst_case(members(batch, prefix)), batch)
