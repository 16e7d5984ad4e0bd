"""Hinge (RSO): DPO that leaves a pair alone once its margin against the reference is safe.

Departures: the loss is the paper's "hinge-norm", SLiC's hinge with log-ratios to the reference in place of log-likelihoods;
SLiC's own (arXiv:2305.10425), without a reference and with a cross-entropy term that keeps the policy near its start, is not
here. The paper's pairs are answers of its optimal policy, drawn by statistical rejection sampling and ranked by a model; here
they must be given (`--task pairs.jsonl`). Its gamma, beta here, is 0.05, the best of 0.005, 0.05 and 0.5 there. Steps and rate are
`dpo`'s: 640 pairs, not a pass (the paper's: batches of 32 at 1e-5 with Adafactor).
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo


@preference_loss(
    name="hinge",
    paper="arXiv:2309.06657",
    base="dpo",
    laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)
def hinge_loss(batch: Batch, beta: float = 0.05, length_normalised: bool = False) -> Tensor:
    """Hinge (RSO): push the pair apart until the margin is safe, then leave it alone.

    L = max(0, 1 - beta u);  no gradient once beta u >= 1;  u is measured against the reference
    """
    return (1 - beta * margin(batch, mean=length_normalised)).clamp_min(0)


hinge = method(dpo.but(name="hinge", title="Hinge (RSO)", paper="arXiv:2309.06657", doc=__doc__, loss=hinge_loss))
