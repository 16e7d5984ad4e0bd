"""Kimi k1.5: policy mirror descent: centred rewards, and the squared log-ratio of the answer to where the step began.

Departures: of the paper's recipe the update alone is here: no length reward, no curriculum and prioritised sampling,
no partial rollouts, no fresh optimiser at each iteration. The paper names no tau (0.1 here); 8 answers per prompt and
4 updates per batch (2 passes in 2) are this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.dr_grpo import dr_grpo as centred
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import term
from posttrain.methods.reinforce import reinforce
from posttrain.weights.reference import reset


@term(
    title="Squared log-ratio (Kimi k1.5)",
    paper="arXiv:2501.12599",
    base="kl",
    laws=("zero_at_the_reference",),
    reads=("ref_logp_BT",),
)
def squared_log_ratio(batch: Batch, tau: float = 0.1) -> Tensor:
    """Squared log-ratio (Kimi k1.5): stay near where the step began, measured on the whole answer, off policy too.

    sum_t L_t = tau / 2 (log pi(y) / ref(y))^2, in equal parts;  gradient at each token: tau log pi(y) / ref(y)
    With REINFORCE and R - mean R this is the paper's mirror descent (its equation 3), ref the weights before the step.
    For answers of one token it is the `kl` term's k2. The paper names no tau.
    """
    log_ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["ref_logp_BT"], 0.0)
    share_B = log_ratio_BT.sum(-1) ** 2 / batch.lengths_B.clamp_min(1)
    return 0.5 * tau * share_B.unsqueeze(-1) * (batch.mask_BT > 0)


kimi_k1_5 = method(
    reinforce.but(
        name="kimi-k1-5", title="Kimi k1.5", paper="arXiv:2501.12599", doc=__doc__,
        advantage=centred, terms=(squared_log_ratio,), reference=reset.but(every=1), epochs=2, minibatches=2,  # type: ignore[attr-defined]
    )
)  # fmt: skip
