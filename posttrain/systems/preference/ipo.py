"""IPO: DPO that aims at a finite margin, so that pairs which are always won do not pull the policy away for ever.

Departures: none known in the loss; beta is the paper's tau, 0.1 here. The paper's experiments are bandits; steps and
rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`).
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo


@preference_loss(
    name="ipo",
    paper="arXiv:2310.12036",
    base="dpo",
    laws=("swap_flips_gradient_sign",),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)
def ipo_loss(batch: Batch, beta: float = 0.1, length_normalised: bool = False) -> Tensor:
    """IPO: aim at a finite margin, so that a pair that is always won does not pull the policy away for ever.

    L = (u - 1/(2 beta))^2;  past the target the gradient turns back
    """
    return (margin(batch, mean=length_normalised) - 1 / (2 * beta)) ** 2


ipo = method(dpo.but(name="ipo", title="IPO", paper="arXiv:2310.12036", doc=__doc__, loss=ipo_loss))
