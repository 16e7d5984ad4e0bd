"""NCA: noise contrastive alignment: absolute rewards, so that the likelihood of the preferred answer does not fall.

Departures: the form for pairs; the paper's main form has K answers with rewards per prompt, of which this is K = 2 with a reward that is 0 or 1 at temperature 0.
beta 0.01 is the authors' for pairs (their rate 5e-6). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import log_ratio
from posttrain.methods.dpo import dpo


@preference_loss(
    name="nca", paper="arXiv:2402.05369", base="dpo", reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def nca_loss(batch: Batch, beta: float = 0.01) -> Tensor:
    """NCA: tell the preferred answer from noise, and both answers from samples of the reference.

    L = -log sigmoid(beta l_w) - 1/2 log sigmoid(-beta l_w) - 1/2 log sigmoid(-beta l_l);  l = log pi(y) - log ref(y)
    """
    reward_B = beta * log_ratio(batch)
    chosen_P, rejected_P = reward_B[batch["chosen_P"]], reward_B[batch["rejected_P"]]
    return -logsigmoid(chosen_P) - 0.5 * logsigmoid(-chosen_P) - 0.5 * logsigmoid(-rejected_P)


nca = method(dpo.but(name="nca", title="NCA", paper="arXiv:2402.05369", doc=__doc__, loss=nca_loss))
