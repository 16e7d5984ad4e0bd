"""SimPO: the reward of an answer is the mean log-probability of its tokens, and the chosen one must be ahead by a margin; no reference.

Departures: beta 2 and gamma = 0.25 beta = 0.5 are the defaults of the authors' code; their tuned runs have beta 2 to 10 and gamma between 0.1 and 0.8 of beta, at
rates from 3e-7 to 1e-6 and 128 pairs per step, one pass (`--prompts 128 --lr 6e-7`). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import sequence_logp
from posttrain.methods.dpo import dpo


@preference_loss(
    name="simpo",
    paper="arXiv:2405.14734",
    base="dpo",
    laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "rejected_P"),
)
def simpo_loss(batch: Batch, beta: float = 2.0, gamma: float = 0.5) -> Tensor:
    """SimPO: what is ranked is how likely an answer is per token, as it is when answers are generated.

    L = -log sigmoid(beta (s_w - s_l) - gamma);  s = mean_t log pi(y_t)
    """
    mean_B = sequence_logp(batch.logp_BT, batch, mean=True)
    return -logsigmoid(beta * (mean_B[batch["chosen_P"]] - mean_B[batch["rejected_P"]]) - gamma)


simpo = method(dpo.but(name="simpo", title="SimPO", paper="arXiv:2405.14734", doc=__doc__, loss=simpo_loss))
