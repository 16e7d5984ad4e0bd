"""IPO: DPO that aims at a finite margin, so that pairs which are always won do not pull the policy away for ever.

Departures: u is a mean over each answer's tokens, as the authors confirm they ran it on language models (TRL and HALOs
do the same); the paper prints log pi(y), a sum (`--loss "ipo(length_normalised=False)"`), and its experiments are
bandits. beta is the paper's tau, 0.1 here. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase
of supervised fine-tuning. Pairs must be given (`--task pairs.jsonl`).
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
def ipo_loss(batch: Batch, beta: float = 0.1, length_normalised: bool = True) -> Tensor:
    """IPO: aim at a finite margin, so that a pair that is always won does not pull the policy away for ever.

    L = (u - 1/(2 beta))^2;  past the target the gradient turns back
    length_normalised: u of mean log-probabilities per token, as the authors run it; else of sums, as the paper prints it
    """
    return (margin(batch, mean=length_normalised) - 1 / (2 * beta)) ** 2


ipo = method(dpo.but(name="ipo", title="IPO", paper="arXiv:2310.12036", doc=__doc__, loss=ipo_loss))
