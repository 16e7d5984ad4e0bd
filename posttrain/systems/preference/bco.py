"""BCO: a classifier of good and bad answers whose logit is the implicit reward, shifted by its running mean.

Rows need a response and a label (`--task labels.jsonl`); pairs are taken apart: the chosen answer is good, the rejected one bad.

Departures: the shift is the mean of the implicit reward over all answers so far, as in TRL; the paper prints the mean of the two classes' means. Its weights for prompts
that differ between good and bad answers (a classifier of embeddings) are not here. beta 0.01 and 5e-7 (`--lr 5e-7`) are the paper's. Steps are `dpo`'s: 640 rows, not a pass.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss
from posttrain.losses.aggregate import answer_mean
from posttrain.losses.preference.margin import log_ratio
from posttrain.methods.dpo import dpo
from posttrain.rollouts.written import labels


def mean_reward(batch: Batch, memory: dict[str, float], beta: float = 0.01) -> Batch:
    """delta: the mean implicit reward of all labelled answers so far, this minibatch's included; the memory keeps sum and count."""
    told_B = batch.valid_B & ~batch["label_B"].isnan()
    reward_B = beta * log_ratio(batch.but(logp_BT=batch.logp_BT.detach()))[told_B]
    memory["bco_sum"] = memory.get("bco_sum", 0.0) + float(reward_B.sum())
    memory["bco_count"] = memory.get("bco_count", 0.0) + reward_B.numel()
    delta = memory["bco_sum"] / max(memory["bco_count"], 1.0)
    return batch.but(delta_B=batch.mask_BT.new_full((len(batch.mask_BT),), delta))


@preference_loss(
    name="bco", paper="arXiv:2404.04656", base="kto", reads=("label_B", "ref_logp_BT"), per="answer", whole=mean_reward,
)  # fmt: skip
def bco_loss(batch: Batch, beta: float = 0.01) -> Tensor:
    """BCO: is the reward of this answer above the mean? Yes for good ones, no for bad ones.

    L = -log sigmoid(beta l - delta)  for a good answer,  -log sigmoid(delta - beta l)  for a bad one;  l = log pi(y) - log ref(y)
    delta = the running mean of beta l, without gradient
    """
    above_B = beta * log_ratio(batch) - batch["delta_B"]
    return -logsigmoid(above_B * (2.0 * (batch["label_B"] > 0.5) - 1))


bco = method(
    dpo.but(
        name="bco", title="BCO", paper="arXiv:2404.04656", doc=__doc__, rollout=labels, loss=bco_loss, aggregate=answer_mean,
    )
)  # fmt: skip
