"""BCO: a classifier of good and bad answers whose logit is the implicit reward, shifted by its running mean.

Rows need a response and a label (`--task labels.jsonl`); pairs are taken apart: the chosen answer is good, the rejected one bad.

Departures: the paper's weights for prompts that differ between good and bad answers (a classifier of embeddings) are not here.
The shift is the paper's, half the sum of the two classes' means; TRL's is the mean over all answers, which is another number where the classes are not equally many. beta 0.01 and 5e-7 (`--lr 5e-7`) are the paper's. Steps are `dpo`'s: 640 rows, not a pass.
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
    """delta: half of the mean implicit reward of good answers plus that of bad ones, over all so far, this minibatch's included.

    The memory keeps sum and count of each class; as long as only one class was seen, delta is its mean.
    """
    reward_B, means = beta * log_ratio(batch.but(logp_BT=batch.logp_BT.detach())), []
    good_B = batch["label_B"] > 0.5
    for name, mine_B in (("good", good_B), ("bad", ~good_B & ~batch["label_B"].isnan())):
        own_B = reward_B[mine_B & batch.valid_B]
        memory[f"bco_{name}_sum"] = memory.get(f"bco_{name}_sum", 0.0) + float(own_B.sum())
        memory[f"bco_{name}_count"] = memory.get(f"bco_{name}_count", 0.0) + own_B.numel()
        means += [memory[f"bco_{name}_sum"] / memory[f"bco_{name}_count"]] if memory[f"bco_{name}_count"] else []
    delta = sum(means) / max(len(means), 1)
    return batch.but(delta_B=batch.mask_BT.new_full((len(batch.mask_BT),), delta))


@preference_loss(
    name="bco", paper="arXiv:2404.04656", base="kto", reads=("label_B", "ref_logp_BT"), per="answer", whole=mean_reward,
)  # fmt: skip
def bco_loss(batch: Batch, beta: float = 0.01) -> Tensor:
    """BCO: is the reward of this answer above the mean? Yes for good ones, no for bad ones.

    L = -log sigmoid(beta l - delta)  for a good answer,  -log sigmoid(delta - beta l)  for a bad one;  l = log pi(y) - log ref(y)
    delta = (mean of beta l over good answers + mean over bad ones) / 2, over all so far, without gradient
    """
    above_B = beta * log_ratio(batch) - batch["delta_B"]
    return -logsigmoid(above_B * (2.0 * (batch["label_B"] > 0.5) - 1))


bco = method(
    dpo.but(
        name="bco", title="BCO", paper="arXiv:2404.04656", doc=__doc__, rollout=labels, loss=bco_loss, aggregate=answer_mean,
    )
)  # fmt: skip
