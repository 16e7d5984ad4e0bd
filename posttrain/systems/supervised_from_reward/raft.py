"""RAFT: sample, keep each prompt's best answer, imitate it; supervised learning on one's own best.

Departures: a round of the paper ranks the answers to 1,024 or 2,048 prompts and imitates the best in 2 to 4 epochs, for 20
rounds; here a round is one step of 16 prompts, imitated in 4 epochs of 4 updates: `--prompts 1024 --minibatches 64 --steps 20` is
the paper's size. The best of 8 is the smallest of its 8, 16 and 32 (`--num-generations 32`). `--select "best_of(everywhere=True)"` ranks over all
prompts of a step. Its ranking by the reward less beta log(pi / pi_0) and its discarding of broken texts are not here. The reward model must be given
(`--reward runs/NAME`, or a folder); without one the task's own grade ranks. Answers grow longer under a reward model that likes it, as in the
paper (128 to 156 tokens): the metric is `length`.
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
def best_of(groups: list[Group], everywhere: bool = False) -> list[Group]:
    """Best of (RAFT): of each prompt's answers only the best is kept; the first of several equally good.

    keep argmax_i R_i;  failed and silenced answers are never chosen, and groups of only such go
    everywhere: the best of all answers of the step, as many as there are prompts, whosever they are; easy prompts then have several, hard ones none
    """
    if everywhere:
        all_of = [(g, r) for g in groups for r in valid_rollouts(g)]
        best = sorted(range(len(all_of)), key=lambda i: -reward_of(all_of[i][1]))[: len(groups)]
        mine = {id(all_of[i][1]) for i in best}
        some = [g.only([i for i, r in enumerate(g.rollouts) if id(r) in mine]) for g in groups]
        return [g for g in some if g.rollouts]
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
        rollout=sample.but(n=8), select=(best_of,), loss=raft_loss, epochs=4, minibatches=4,
    )
)  # fmt: skip
