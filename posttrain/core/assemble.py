"""From groups of rollouts to the batch that a loss sees."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from posttrain.core.places import places
from posttrain.core.types import Batch, Group, Rollout, pad


def assemble(groups: list[Group]) -> tuple[list[Rollout], Batch]:
    """Rows in the order of groups; the outcome sits on the last action, a failed reward masks its row.

    A group of two is also a preference pair, best first.
    """
    rollouts = [r for g in groups for r in g.rollouts]
    T = max(len(r) for r in rollouts)
    mask_BT = pad([(r.mask_T & (not r.failed)).float() for r in rollouts], T)
    group_B = torch.tensor([i for i, g in enumerate(groups) for _ in g.rollouts])
    starts = accumulate((len(g.rollouts) for g in groups), initial=0)
    first = [start for start, g in zip(starts, groups, strict=False) if len(g.rollouts) == 2]
    batch = Batch(
        logp_BT=torch.zeros(len(rollouts), T),
        mask_BT=mask_BT,
        old_logp_BT=pad([r.logp_T.float() for r in rollouts], T),
        reward_BT=pad([earned(r) for r in rollouts], T),
        group_B=group_B,
        chosen_P=torch.tensor(first, dtype=torch.long),
        rejected_P=torch.tensor(first, dtype=torch.long) + 1,
        version_B=torch.tensor([r.version for r in rollouts]),
        token_BT=pad([r.actions for r in rollouts], T) if all(r.actions.dim() == 1 for r in rollouts) else None,
        info={
            "length_B": torch.tensor([len(r) for r in rollouts]),
            "written_B": torch.tensor([bool(r.info.get("written")) for r in rollouts]),
            **components(rollouts),
            **places(groups, T),
        },
    )
    return rollouts, batch


def components(rollouts: list[Rollout]) -> dict[str, Tensor]:
    """What each answer earned by component, as `reward:<name>_B`; NaN where it has no such component."""
    names = sorted({name for r in rollouts for name in r.rewards})
    return {f"reward:{n}_B": torch.tensor([r.rewards.get(n, float("nan")) for r in rollouts]) for n in names}


def earned(r: Rollout) -> Tensor:
    """What each action earned: dense rewards where they fell, the outcome on the last action the policy chose."""
    out_T = torch.zeros(len(r)) if r.reward_T is None else r.reward_T.float().clone()
    own = r.mask_T.nonzero()
    if r.reward is not None and not r.failed and len(own):
        out_T[int(own[-1])] += r.reward
    return out_T
