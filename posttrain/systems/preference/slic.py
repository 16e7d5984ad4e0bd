"""SLiC-HF: calibrate likelihoods: the better answer must be likelier than the worse one by a margin, while the model is kept on demonstrations.

Departures: the regulariser imitates the preferred answer, as with the paper's pairs of human feedback ("direct"), where there is no other demonstration; the
paper's default is the SFT target. Margin 1 and weight 0.1 are those of others' code (HALOs); the paper tunes them. The paper's other variant, which samples answers and
ranks them by a model, is `rso` with this loss: `--loss slic`. Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import sequence_logp
from posttrain.methods.dpo import dpo


@preference_loss(
    name="slic",
    paper="arXiv:2305.10425",
    base="hinge",
    laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "rejected_P"),
)
def slic_loss(batch: Batch, delta: float = 1.0, lam: float = 0.1) -> Tensor:
    """SLiC-HF: a hinge on log-likelihoods, without a reference, and imitation of the preferred answer.

    L = max(0, delta - S_w + S_l) - lam S_w;  S = sum_t log pi(y_t)
    """
    sum_B = sequence_logp(batch.logp_BT, batch)
    chosen_P, rejected_P = sum_B[batch["chosen_P"]], sum_B[batch["rejected_P"]]
    return (delta - chosen_P + rejected_P).clamp_min(0) - lam * chosen_P


slic = method(dpo.but(name="slic", title="SLiC-HF", paper="arXiv:2305.10425", doc=__doc__, loss=slic_loss))
