"""RAFT: sample, keep each prompt's best answer, imitate it; supervised learning on one's own best.

Departures: the paper ranks 1,024 or more prompts' answers per round and imitates the best for several epochs, for 20
rounds; here a round is one step of 16 prompts and one update: `--prompts 1024 --epochs 4 --minibatches 64` is near
it. Its ranking over all prompts and its discarding of broken texts are not here. The reward model must be given
(`--reward runs/NAME`); without one the task's own grade ranks.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import policy_loss, select
from posttrain.core.types import Group
from posttrain.losses.supervised.sft import sft as maximum_likelihood
from posttrain.methods.sft import sft
from posttrain.rollouts.sample import sample
from posttrain.select.valid import place, reward_of, valid_rollouts

# ---- which groups are learned from


@select(paper="arXiv:2304.06767")
def best_of(groups: list[Group]) -> list[Group]:
    """Best of (RAFT): of each prompt's answers only the best is kept; the first of several equally good.

    keep argmax_i R_i;  failed and silenced answers are never chosen, and groups of only such go
    """
    return [g.only([place(g, max(valid_rollouts(g), key=reward_of))]) for g in groups if valid_rollouts(g)]


# ---- what is minimised


@policy_loss(name="raft", paper="arXiv:2304.06767", base="sft")
def raft_loss(batch: Batch) -> Tensor:
    """RAFT: imitate the best of one's own answers; the filter `best_of` chose them, so no credit is read.

    L = -log pi
    """
    return maximum_likelihood(batch)


# ---- the method

raft = method(
    sft.but(
        name="raft", title="RAFT", paper="arXiv:2304.06767", doc=__doc__,
        rollout=sample.but(n=8), select=(best_of,), loss=raft_loss,
    )
)  # fmt: skip
