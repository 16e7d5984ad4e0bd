"""GPG: plain policy gradient, no clip, no KL: centred rewards, larger where many groups taught nothing, tokens alike.

Departures: where too few groups of a batch differ in reward the authors sample again until a threshold is reached;
here the step is taken as it is, with the larger alpha, and never refilled. F_norm = 1 is one of the paper's two
choices; for the other use `--advantage grpo`. 8 answers per prompt and one update per batch are this package's.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_std
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage
from posttrain.losses.aggregate import token_mean
from posttrain.methods.reinforce import reinforce


@advantage(
    name="gpg",
    title="GPG",
    paper="arXiv:2504.02546",
    base="dr_grpo",
    laws=("shift_invariant", "sums_to_zero"),
    reads=("group_B", "reward_BT"),
)
def rescaled_to_the_live(batch: Batch) -> Tensor:
    """GPG: centred rewards, made larger by the share of answers whose group taught nothing, so that steps keep their size.

    A_i = alpha (R_i - mean_group R);  alpha = B / (B - M), M answers in groups that all earned the same
    The paper's F_norm = 1; its other choice, the group's std, is the advantage `grpo`.
    """
    group_B, valid_B, earned_B = batch["group_B"], batch.valid_B, batch.returns_B
    teaches_B = valid_B & (group_std(earned_B, group_B, valid_B) > 0)
    alpha = valid_B.sum() / teaches_B.sum().clamp_min(1)
    return broadcast_to_tokens(alpha * group_centre(earned_B, group_B, valid_B), batch)


gpg = method(
    reinforce.but(
        name="gpg", title="GPG", paper="arXiv:2504.02546", doc=__doc__,
        advantage=rescaled_to_the_live, aggregate=token_mean,
    )
)  # fmt: skip
