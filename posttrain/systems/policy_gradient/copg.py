"""CoPG: two logged answers per prompt, fitted so that their log-ratios to the reference differ as their rewards do.

A log is rows of a prompt, a response and its reward, two or more of a prompt (`--task log.jsonl`), or a run (`--task runs/NAME`);
nobody needs to know how likely the answers were. `--rollout "sample(n=2)"` learns from two fresh answers per prompt at each step instead.

Departures: none known in the loss. beta 0.1 is this package's and to be tuned, as are 4 updates per step (2 epochs in 2). The
paper's scores come from a reward model: they stand in the log, or `--reward runs/NAME` (a run, or a folder) gives them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import preference_loss, select
from posttrain.core.types import Group
from posttrain.losses.preference.margin import margin
from posttrain.methods.dpo import dpo
from posttrain.rollouts.logged import logged
from posttrain.select.valid import reward_of


@select(title="In twos (CoPG)", paper="arXiv:2406.19185", provides=("chosen_P", "rejected_P"))
def in_twos(groups: list[Group]) -> list[Group]:
    """In twos (CoPG): the answers to a prompt in twos, as they came, the better of each two first.

    pairs (y_0, y_1), (y_2, y_3), ...;  of an odd number the last is compared with nobody
    Two that earned the same are a pair too: a loss that weighs pairs by what both earned (`copg`) needs them. One that
    only knows better and worse (`dpo`) must not see them; for it there is `best_worst`.
    """
    return [replace(g, pairs=tuple(_better_first(g, i) for i in range(0, len(g.rollouts) - 1, 2))) for g in groups]


def _better_first(group: Group, i: int) -> tuple[int, int]:
    one, two = group.rollouts[i : i + 2]
    known = all(r.reward is not None and not r.failed for r in (one, two))  # else the pair does not count
    return (i + 1, i) if known and reward_of(two) > reward_of(one) else (i, i + 1)


@preference_loss(
    name="copg",
    title="CoPG",
    paper="arXiv:2406.19185",
    base="ipo",
    reads=("chosen_P", "ref_logp_BT", "rejected_P", "reward_BT"),
)
def contrastive_loss(batch: Batch, beta: float = 0.1) -> Tensor:
    """CoPG: two answers, each the other's baseline; right for answers from anywhere, with no importance weight.

    L = (R(y) - R(y') - beta u)^2 / (2 beta);  u = log(pi/ref)(y) - log(pi/ref)(y');  R is what each answer earned
    -dL = [R_b(y) - R_b(y')] (d log pi(y) - d log pi(y')) with R_b = R - beta log(pi/ref): the paper's gradient. Which of
    the two is called chosen does not matter. On policy it is RLOO with two answers; with R - R' = 1/2 it is IPO (beta / 2).
    """
    earned_B = torch.where(batch.valid_B, batch.returns_B, 0.0)
    gap_P = earned_B[batch["chosen_P"]] - earned_B[batch["rejected_P"]]
    return (gap_P - beta * margin(batch)) ** 2 / (2 * beta)


copg = method(
    dpo.but(
        name="copg", title="CoPG", paper="arXiv:2406.19185", doc=__doc__,
        rollout=logged.but(n=2, logp=False), select=(in_twos,), loss=contrastive_loss, epochs=2, minibatches=2,
    )
)  # fmt: skip
