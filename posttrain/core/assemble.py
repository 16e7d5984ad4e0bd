"""From groups of rollouts to the rows and the batch that a loss sees, and credit back to the rollouts."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from posttrain.core.batch import Batch, pad
from posttrain.core.row_keys import row_keys
from posttrain.core.turn import Turn, join
from posttrain.core.types import Group, Origin, Rollout


def by_role(groups: list[Group], shared: bool = False) -> dict[str, list[Group]]:
    """Groups of each role's rollouts, in the order the roles first appear; pairs and rankings are within one role.

    shared: one policy plays every role, so it learns from all of them in one update, as groups of their own.
    """
    roles = list(dict.fromkeys(r.role for g in groups for r in g.rollouts))
    if len(roles) <= 1:
        return {"policy" if shared else role: groups for role in roles}
    out = {}
    for role in roles:
        mine = [g.only([i for i, r in enumerate(g.rollouts) if r.role == role]) for g in groups]
        out[role] = [g for g in mine if g.rollouts]
    return {"policy": [g for some in out.values() for g in some]} if shared else out


def assemble(groups: list[Group]) -> tuple[list[Turn], Batch]:
    """One row per context, in the order of groups; the outcome sits on the last action, a failed reward masks its rows.

    `answer_B` is there when some rollout has several contexts: the row of the last context of the rollout a row belongs to.
    """
    rollouts = [r for g in groups for r in g.rollouts]
    contexts = [r.contexts for r in rollouts]
    flat = [context for some in contexts for context in some]
    rows = [join(context) for context in flat]
    owners = [r for r, some in zip(rollouts, contexts, strict=True) for _ in some]
    ends = list(accumulate(len(some) for some in contexts))
    last = [end - 1 for end, some in zip(ends, contexts, strict=True) for _ in some]
    T = max(len(row) for row in rows)
    sizes = [len(g.rollouts) for g in groups]
    numbers = [i for (i, some) in zip(_repeat(sizes), contexts, strict=True) for _ in some]
    is_last = [i == at for i, at in enumerate(last)]
    whole_B1 = torch.tensor([not r.failed for r in owners]).unsqueeze(1)
    mask_BT = (pad([row.mask_T for row in rows], T) & whole_B1).float()
    outcomes = [r.reward if end else None for r, end in zip(owners, is_last, strict=True)]
    batch = Batch(
        logp_BT=torch.zeros(len(rows), T),
        mask_BT=mask_BT,
        old_logp_BT=pad([row.logp_T.float() for row in rows], T),
        reward_BT=earned(flat, outcomes, mask_BT),
        group_B=torch.tensor(numbers),
        version_B=torch.tensor([r.version for r in owners]),
        token_BT=pad([row.actions for row in rows], T) if all(row.actions.dim() == 1 for row in rows) else None,
        length_B=torch.tensor([len(row) for row in rows]),
        written_B=torch.tensor([r.origin is not Origin.SAMPLED for r in owners]),
        answer_B=torch.tensor(last) if len(rows) > len(rollouts) else None,
        **compared(groups, [end - 1 for end in ends]),
        **components(owners),
        **row_keys(groups, rows, owners, T),
    )
    return rows, batch


def _repeat(sizes: list[int]) -> list[int]:
    """[2, 1] -> [0, 0, 1]."""
    return [i for i, size in enumerate(sizes) for _ in range(size)]


def compared(groups: list[Group], last: list[int]) -> dict[str, Tensor]:
    """Pairs and ranked lists as rows: those that data, or a part that ranks, has put into the groups."""
    starts = list(accumulate((len(g.rollouts) for g in groups), initial=0))
    pairs = [(last[s + a], last[s + b]) for s, g in zip(starts, groups, strict=False) for a, b in g.pairs]
    lists = [[last[s + i] for i in g.ranking] for s, g in zip(starts, groups, strict=False) if g.ranking]
    out: dict[str, Tensor] = {}
    if pairs:
        chosen_P, rejected_P = torch.tensor(pairs).unbind(1)
        sure = [p for g in groups for p in (g.strengths or [1.0] * len(g.pairs))]
        out |= {"chosen_P": chosen_P, "rejected_P": rejected_P, "preferred_P": torch.tensor(sure)}
    if lists:
        out["ranked_LK"] = pad([torch.tensor(some) for some in lists], max(map(len, lists)), -1)
    return out


def answers(batch: Batch) -> Batch:
    """The rows that are a rollout's last context: what rewards and comparisons are about."""
    answer_B = batch.get("answer_B")
    if answer_B is None:
        return batch
    return batch.rows((answer_B == torch.arange(len(answer_B))).nonzero().squeeze(-1))


def placed(stream_AT: Tensor, batch: Batch) -> Tensor:
    """A stream of the answers for all rows, 0 in earlier contexts."""
    answer_B = batch.get("answer_B")
    if answer_B is None:
        return stream_AT
    out_BT = torch.zeros_like(batch.mask_BT)
    out_BT[answer_B == torch.arange(len(answer_B)), : stream_AT.shape[1]] = stream_AT
    return out_BT


def shared(stream_AT: Tensor, batch: Batch) -> Tensor:
    """A stream of the answers for all rows: an earlier context has throughout what its answer has at its first action."""
    answer_B = batch.get("answer_B")
    if answer_B is None:
        return stream_AT
    out_BT = placed(stream_AT, batch)
    first_B = (batch.mask_BT[answer_B] > 0).int().argmax(-1)
    earlier_B1 = (answer_B != torch.arange(len(answer_B))).unsqueeze(-1)
    return torch.where(earlier_B1, out_BT[answer_B, first_B].unsqueeze(-1) * batch.mask_BT, out_BT)


def credits(made: Tensor | tuple[Tensor, ...], batch: Batch) -> dict[str, Tensor]:
    """What an advantage returns, by name: credit; some also say what the critic (or each of several) should learn, or mark
    tokens."""
    streams = made if isinstance(made, tuple) else (made,)
    out = {}
    for name, x in zip(("adv", "return", "mark"), streams, strict=False):
        several = x.dim() == 3
        by_one = [shared(x_AT, batch) for x_AT in (x.unbind(-1) if several else (x,))]
        out[f"{name}_BTK" if several else f"{name}_BT"] = torch.stack(by_one, -1) if several else by_one[0]
    return out


def keep_credit(groups: list[Group], batch: Batch) -> None:
    """Each rollout keeps the advantage of its last context's actions, to be stored and looked at."""
    rollouts = [r for g in groups for r in g.rollouts]
    ends = accumulate(len(r.contexts) for r in rollouts)
    for r, end in zip(rollouts, ends, strict=True):
        r.set_stream("adv", batch["adv_BT"][end - 1, : len(r)])


def components(rollouts: list[Rollout]) -> dict[str, Tensor]:
    """What each answer earned by component, as `reward:<name>_B`; NaN where it has no such component. The component `label` of data is
    `label_B`: 1 for an answer that was called good, 0 for a bad one."""
    names = sorted({name for r in rollouts for name in r.rewards})
    known = {n: torch.tensor([r.rewards.get(n, float("nan")) for r in rollouts]) for n in names}
    return {"label_B" if n == "label" else f"reward:{n}_B": x for n, x in known.items()}


def earned(contexts: list[list[Turn]], outcomes: list[float | None], mask_BT: Tensor) -> Tensor:
    """What each action of each context earned: dense rewards where they fell, a turn's reward on the last action that the policy
    chose in it, and the outcome on the last one of all."""
    out_BT = torch.zeros_like(mask_BT)
    for b, context in enumerate(contexts):
        if any(t.reward is not None or "reward" in t.streams_T for t in context):
            inside_T = _inside(context)
            out_BT[b, : len(inside_T)] = inside_T
    own_B = mask_BT.any(-1).tolist()
    rows = [b for b, worth in enumerate(outcomes) if worth is not None and own_B[b]]
    if rows:
        last_B = mask_BT.shape[1] - 1 - mask_BT.flip(-1).argmax(-1)
        out_BT[rows, last_B[rows]] += torch.tensor([outcomes[b] for b in rows])
    return out_BT


def _inside(context: list[Turn]) -> Tensor:
    """The rewards of a context's turns, dense and at their ends; 0 where something was observed."""
    pieces = []
    for k, t in enumerate(context):
        dense_T = t.streams_T.get("reward")
        out_T = torch.zeros(len(t)) if dense_T is None else dense_T.float().clone()
        own = t.mask_T.nonzero()
        if t.reward is not None and len(own):
            out_T[int(own[-1])] += t.reward
        pieces += [torch.zeros(len(t.observation.tokens)), out_T] if k else [out_T]
    return torch.cat(pieces)
