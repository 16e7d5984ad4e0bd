"""Hinge (SLiC): DPO that leaves a pair alone once its margin is safe.

Departures: this is the hinge of RSO (arXiv:2309.06657, "hinge-norm"), with a margin against the reference; SLiC's own
is of the log-likelihoods themselves, without a reference, plus a cross-entropy term that keeps the policy near its
fine-tuned start, which is not here. The paper's pairs are its policy's samples ranked by a model; here they must be
given (`--task pairs.jsonl`). beta 0.1 is this package's. Steps and rate are `dpo`'s: 640 pairs, not a pass.
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
    paper="arXiv:2305.10425",
    base="dpo",
    laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)
def hinge_loss(batch: Batch, beta: float = 0.1, length_normalised: bool = False) -> Tensor:
    """Hinge (SLiC): push the pair apart until the margin is safe, then leave it alone.

    L = max(0, 1 - beta u);  no gradient once beta u >= 1;  u is measured against the reference as in arXiv:2309.06657
    """
    return (1 - beta * margin(batch, mean=length_normalised)).clamp_min(0)


hinge = method(dpo.but(name="hinge", title="Hinge", paper="arXiv:2305.10425", doc=__doc__, loss=hinge_loss))
