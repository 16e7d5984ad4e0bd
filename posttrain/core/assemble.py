"""From groups of rollouts to the batch that a loss sees."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from posttrain.core.row_keys import places
from posttrain.core.types import Batch, Group, Rollout, pad


def assemble(groups: list[Group]) -> tuple[list[Rollout], Batch]:
    """Rows in the order of groups; the outcome sits on the last action, a failed reward masks its row.

    A group of two is also a preference pair, best first. Earlier turns of an answer are rows before it.
    """
    if any(r.earlier for g in groups for r in g.rollouts):
        return with_turns(groups)
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


def with_turns(groups: list[Group]) -> tuple[list[Rollout], Batch]:
    """As `assemble`, and `answer_B` says which row is the answer that a row's turn led to; a failed one masks its turns."""
    turns = [[*r.earlier, r] for g in groups for r in g.rollouts]
    bare = [Group(g.prompt, [replace(t, earlier=[]) for r in g.rollouts for t in (*r.earlier, r)]) for g in groups]
    _, batch = assemble(bare)
    ends = list(accumulate(len(some) for some in turns))
    answer_B = torch.tensor([end - 1 for end, some in zip(ends, turns, strict=True) for _ in some])
    failed_B = torch.tensor([some[-1].failed for some in turns for _ in some])
    none = torch.zeros(0, dtype=torch.long)  # rows of a group are no longer a pair
    batch = batch.but(mask_BT=torch.where(failed_B.unsqueeze(-1), 0.0, batch.mask_BT), chosen_P=none, rejected_P=none)
    batch.info["answer_B"] = answer_B
    return [t for some in turns for t in some], batch


def answers(batch: Batch) -> Batch:
    """The rows that are answers: what rewards and comparisons are about."""
    answer_B = batch.info.get("answer_B")
    return batch if answer_B is None else batch.rows((answer_B == torch.arange(len(answer_B))).nonzero().squeeze(-1))


def placed(stream_AT: Tensor, batch: Batch) -> Tensor:
    """A stream of the answers for all rows, 0 in earlier turns."""
    answer_B = batch.info.get("answer_B")
    if answer_B is None:
        return stream_AT
    out_BT = torch.zeros_like(batch.mask_BT)
    out_BT[answer_B == torch.arange(len(answer_B)), : stream_AT.shape[1]] = stream_AT
    return out_BT


def shared(stream_AT: Tensor, batch: Batch) -> Tensor:
    """A stream of the answers for all rows: an earlier turn has throughout what its answer has at its first action."""
    answer_B = batch.info.get("answer_B")
    if answer_B is None:
        return stream_AT
    out_BT = placed(stream_AT, batch)
    first_B = (batch.mask_BT[answer_B] > 0).int().argmax(-1)
    earlier_B1 = (answer_B != torch.arange(len(answer_B))).unsqueeze(-1)
    return torch.where(earlier_B1, out_BT[answer_B, first_B].unsqueeze(-1) * batch.mask_BT, out_BT)


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
