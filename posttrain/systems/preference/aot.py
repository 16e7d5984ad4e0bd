"""AOT: alignment by optimal transport: not each pair but the whole distribution of margins of the policy must lie above the reference's.

Both sides of a minibatch are sorted, and margins of like rank are compared, over the whole minibatch however it is cut. `--loss aot_unpaired` compares the
sorted rewards of all chosen answers with those of all rejected ones, whatever they answer.

Departures: the loss is the logistic one (the paper also has a hinge); the smoothing of the sorting (soft sort) is not here. beta 0.01 is TRL's; a
minibatch is the 16 pairs of a step (`--prompts 64`). Steps and rate are `dpo`'s: 640 pairs by default, not a pass, and no phase of supervised fine-tuning. Pairs must be given
(`--task pairs.jsonl`); without a task the school pairs that ship are learned.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.preference.margin import log_ratio, sequence_logp
from posttrain.methods.dpo import dpo


def _margins(logp_BT: Tensor, batch: Batch) -> Tensor:
    sum_B = sequence_logp(logp_BT.detach(), batch)
    return sum_B[batch["chosen_P"]] - sum_B[batch["rejected_P"]]


def ranked_margins(batch: Batch, memory: dict[str, float], **params: float) -> Batch:
    """Of each pair the reference's margin that has the same rank among all as the pair's own: `beside_P`."""
    valid_P = batch.valid_B[batch["chosen_P"]] & batch.valid_B[batch["rejected_P"]]
    beside_P = batch.mask_BT.new_zeros(len(valid_P))
    own_P, ref_P = (_margins(batch[name], batch)[valid_P] for name in ("logp_BT", "ref_logp_BT"))
    beside_P[valid_P] = ref_P.sort(stable=True).values.to(beside_P)[own_P.argsort(stable=True).argsort()]
    return batch.but(beside_P=beside_P)


def ranked_rewards(batch: Batch, memory: dict[str, float], **params: float) -> Batch:
    """Other pairs: the chosen and the rejected answers of like rank by their log-ratio to the reference."""
    valid_P = batch.valid_B[batch["chosen_P"]] & batch.valid_B[batch["rejected_P"]]
    ratio_B = log_ratio(batch.but(logp_BT=batch.logp_BT.detach()))
    sides = [batch[name][valid_P] for name in ("chosen_P", "rejected_P")]
    best, worst = (rows[ratio_B[rows].argsort(stable=True)] for rows in sides)
    return batch.but(chosen_P=best, rejected_P=worst, preferred_P=None)


@preference_loss(
    name="aot", paper="arXiv:2406.05882", base="dpo", laws=("swap_flips_gradient_sign", "chosen_up_rejected_down"),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"), whole=ranked_margins,
)  # fmt: skip
def aot_loss(batch: Batch, beta: float = 0.01) -> Tensor:
    """AOT: the policy's margins are above the reference's, rank by rank over the minibatch (first-order stochastic dominance).

    L_i = -log sigmoid(beta (m_(i) - r_(i)));  m = log pi(y_w) - log pi(y_l), r of the reference, each sorted
    """
    sum_B = sequence_logp(batch.logp_BT, batch)
    return -logsigmoid(beta * (sum_B[batch["chosen_P"]] - sum_B[batch["rejected_P"]] - batch["beside_P"]))


@preference_loss(
    name="aot_unpaired", paper="arXiv:2406.05882", base="aot", laws=("chosen_up_rejected_down",),
    reads=("chosen_P", "ref_logp_BT", "rejected_P"), whole=ranked_rewards,
)  # fmt: skip
def aot_unpaired_loss(batch: Batch, beta: float = 0.01) -> Tensor:
    """AOT, unpaired: rewards of chosen answers are above those of rejected ones, rank by rank over the minibatch.

    L_i = -log sigmoid(beta (l_w(i) - l_l(i)));  l = log pi(y) - log ref(y), each side sorted
    """
    ratio_B = log_ratio(batch)
    return -logsigmoid(beta * (ratio_B[batch["chosen_P"]] - ratio_B[batch["rejected_P"]]))


aot = method(dpo.but(name="aot", title="AOT", paper="arXiv:2406.05882", doc=__doc__, loss=aot_loss))
