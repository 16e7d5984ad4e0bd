"""BRAIn: distribution matching to the reward-conditioned posterior: samples of the policy, each weighed by what it should be and what it is.

a ~ p(y) exp(r(y) / gamma) / q'(y),  b ~ q(y) / q'(y) over the answers to a prompt;  dL = -sum_i (a_i - b_i) d log q(y_i)
p is the start, q' whoever sampled; a step samples 8 answers to each prompt and takes 4 updates from them, so q' is a little older than q.

Departures: a reward model must be given (`--reward runs/NAME`, or a folder); without one the task's own grade is the reward. The paper draws its samples beforehand and refreshes the
proposal every some thousand updates (that number, and n, could not be checked); here every step of 16 prompts does, and `--minibatches` says how many updates it is used for. gamma 1; a reward that is 0 or 1 wants
less: `--loss "brain(gamma=0.2)"`. The estimate is unbiased for the KL of the self-normalised distributions, not for that of the whole ones; that is the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss, select
from posttrain.core.types import Group
from posttrain.losses.aggregate import list_mean
from posttrain.losses.preference.margin import sequence_logp
from posttrain.losses.preference.ranks import scores
from posttrain.methods.dpo import dpo
from posttrain.rollouts.sample import sample
from posttrain.select.valid import place, reward_of, valid_rollouts

# ---- which groups are learned from


@select(paper="arXiv:2402.02479", provides=("ranked_LK",))
def as_lists(groups: list[Group]) -> list[Group]:
    """As lists (BRAIn): all answers to a prompt that could be scored are a list, best first, also where all earned the same."""
    out = []
    for group in groups:
        best_first = sorted(valid_rollouts(group), key=reward_of, reverse=True)
        if len(best_first) > 1:
            mine = group.only([place(group, r) for r in best_first])
            out.append(Group(mine.prompt, mine.rollouts, ranking=tuple(range(len(best_first)))))
    return out


# ---- what is minimised


@preference_loss(
    name="brain", paper="arXiv:2402.02479", reads=("old_logp_BT", "ranked_LK", "ref_logp_BT", "reward_BT"), per="list",
)  # fmt: skip
def brain_loss(batch: Batch, gamma: float = 1.0, baseline: bool = True) -> Tensor:
    """BRAIn: the KL between the posterior and the policy, both over the n answers at hand, with weights for whoever sampled them.

    L = sum_i a_i (log a_i - log b_i);  a ~ p(y) exp(r(y) / gamma) / q'(y),  b ~ q(y) / q'(y), each adding up to 1 over a prompt's answers
    dL = -sum_i (a_i - b_i) d log q(y_i);  p: the reference, q': the sampler;  baseline=False drops b (DPG): -sum_i a_i log q(y_i)
    """
    ranked_LK = batch["ranked_LK"]
    there_LK = ranked_LK >= 0

    def of(name: str) -> Tensor:
        return sequence_logp(batch[name], batch)[ranked_LK.clamp_min(0)]

    none = torch.tensor(float("-inf"), dtype=batch.mask_BT.dtype)
    posterior_LK = torch.where(there_LK, of("ref_logp_BT") + scores(batch) / gamma - of("old_logp_BT"), none)
    log_a_LK = torch.where(there_LK, posterior_LK.log_softmax(-1), 0.0)
    a_LK = torch.where(there_LK, log_a_LK.exp(), 0.0)
    if not baseline:
        return -(a_LK * torch.where(there_LK, of("logp_BT"), 0.0)).sum(-1)
    weight_LK = torch.where(there_LK, of("logp_BT") - of("old_logp_BT"), none)
    return (a_LK * (log_a_LK - torch.where(there_LK, weight_LK.log_softmax(-1), 0.0))).sum(-1)


# ---- the method

brain = method(
    dpo.but(
        name="brain", title="BRAIn", paper="arXiv:2402.02479", rollout=sample.but(n=8), select=(as_lists,), loss=brain_loss,
        aggregate=list_mean, minibatches=4,
        doc=__doc__,
    )
)  # fmt: skip
