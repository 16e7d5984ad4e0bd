"""TPO: triple preference optimisation: one stage from a base model: imitate the gold answer while preferring the second to the third.

Rows need three ranked answers or more (`--task lists.jsonl`): the best is the gold one, the second is preferred, and the last is rejected. Nothing is measured against a reference.

Departures: none known in the loss; beta 0.01 and alpha 0.05 are the authors' defaults and those of instruct models (alpha 1 for base models: `--loss "tpo(alpha=1)"`); the preference is a sum
over tokens, imitation a mean over each answer's, theirs over all tokens of the minibatch. TPO-L, with means and a margin, is `--loss "tpo(mean=True, gamma=3, beta=1)"`. Their rate is 5e-7, one
pass (`--lr 5e-7`); steps are `dpo`'s here.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.aggregate import list_mean
from posttrain.losses.preference.ranks import placed
from posttrain.methods.dpo import dpo
from posttrain.rollouts.written import lists


@preference_loss(
    name="tpo", paper="arXiv:2405.16681", base="cpo", reads=("ranked_LK",), per="list",
)  # fmt: skip
def tpo_loss(batch: Batch, beta: float = 0.01, alpha: float = 0.05, gamma: float = 0.0, mean: bool = False) -> Tensor:
    """TPO: gold, preferred and rejected answer of one prompt; no answer is both imitated and compared.

    L = -log sigmoid(beta (S_w - S_l) - gamma) - alpha s_gold;  S = sum_t log pi(y_t) (its mean where `mean`), s its mean
    gold, chosen and rejected are the first, the second and the last of a list; data of fewer than three is refused before
    """
    logp_LK, there_LK = placed(batch, mean)
    rejected_L = logp_LK.gather(1, there_LK.sum(-1, keepdim=True) - 1).squeeze(1)
    gold_L = placed(batch, mean=True)[0][:, 0]
    return -logsigmoid(beta * (logp_LK[:, 1] - rejected_L) - gamma) - alpha * gold_L


tpo = method(
    dpo.but(name="tpo", title="TPO", paper="arXiv:2405.16681", doc=__doc__, rollout=lists.but(least=3), loss=tpo_loss, aggregate=list_mean)
)  # fmt: skip
