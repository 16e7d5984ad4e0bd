"""KTO: learn from single answers that were called good or bad: each should be better, or worse, than what the policy gives up on average.

The average is the KL from the reference, z, measured on answers to other questions of the same minibatch, over all of it before it is cut. Rows need a response
and a label (`--task labels.jsonl`); pairs are taken apart: the chosen answer is good, the rejected one bad.

Departures: a minibatch is the 16 rows of a step (the authors: 32 and more, at most 4 makes z noisy: `--prompts 64`). desirable and undesirable are 1;
the paper asks for a ratio of their sums between 1 and 4/3 where one kind is rarer: `--loss "kto(undesirable=2)"`. beta 0.1 is the paper's; its rate is
5e-7 to 5e-6, one pass (`--lr 5e-6`). Steps are `dpo`'s, and there is no phase of supervised fine-tuning.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.aggregate import answer_mean
from posttrain.losses.preference.margin import log_ratio
from posttrain.methods.dpo import dpo
from posttrain.rollouts.written import labels


def mean_kl(batch: Batch, memory: dict[str, float], **params: float) -> Batch:
    """z of every row: the mean of l over the answers without a label, those to other questions, and 0 at least; they are left out then."""
    other_B = batch.valid_B & batch["label_B"].isnan()
    if not bool(other_B.any()):
        raise UserError(
            "KTO measures its z on answers to other questions, and the batch has none; use --rollout 'labels(mismatched=True)'"
        )
    z = log_ratio(batch.but(logp_BT=batch.logp_BT.detach()))[other_B].mean().clamp_min(0)
    told = batch.rows((~batch["label_B"].isnan()).nonzero().squeeze(-1))
    return told.but(z_B=z.expand(len(told.mask_BT)).to(told.mask_BT))


@preference_loss(
    name="kto", paper="arXiv:2402.01306", base="dpo", reads=("label_B", "ref_logp_BT"), per="answer", whole=mean_kl,
)  # fmt: skip
def kto_loss(batch: Batch, beta: float = 0.1, desirable: float = 1.0, undesirable: float = 1.0) -> Tensor:
    """KTO: the value of an answer saturates, for gains and for losses, around the policy's own KL.

    L = w (1 - sigmoid(beta (l - z)))  for a good answer,  w (1 - sigmoid(beta (z - l)))  for a bad one;  l = log pi(y) - log ref(y)
    z = max(0, mean over the minibatch of l of answers to other questions), without gradient
    """
    good_B = batch["label_B"] > 0.5
    ahead_B = beta * (log_ratio(batch) - batch["z_B"])
    weight_B = good_B * desirable + (~good_B) * undesirable
    return weight_B * (1 - (ahead_B * (2.0 * good_B - 1)).sigmoid())


kto = method(
    dpo.but(
        name="kto", title="KTO", paper="arXiv:2402.01306", doc=__doc__, rollout=labels.but(mismatched=True), loss=kto_loss,
        aggregate=answer_mean,
    )
)  # fmt: skip
