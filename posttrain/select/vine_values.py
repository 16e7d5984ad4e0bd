from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.core.registry import select
from posttrain.core.types import Group, Rollout
from posttrain.select.eligible import reward_of


@select(title="Values of vines (VinePPO)", paper="arXiv:2410.01679")
def vine_values(groups: list[Group]) -> list[Group]:
    """Values of vines (VinePPO): the worth of a state is what answers from it earn on average; a segment gets the change.

    V(s) = mean reward of the vines from s;  A = V(s_next) - V(s), and R - V(s) for the last segment
    Every token's reward becomes its segment's A, for the advantage `dense` to read; the vines leave. An answer is failed
    where a state has no vine that could be scored.
    """
    out = []
    for g in groups:
        places = [i for i, r in enumerate(g.rollouts) if not _is_vine(r)]
        out.append(replace(g.only(places), rollouts=[_credited(g, i) for i in places]))
    return out


def _is_vine(r: Rollout) -> bool:
    return bool(r.info.get("vine"))


def _credited(group: Group, i: int) -> Rollout:
    r = group.rollouts[i]
    found: dict[int, list[Rollout]] = {}
    for vine in group.rollouts:
        if _is_vine(vine) and vine.branch and vine.branch.parent == i:
            found.setdefault(vine.branch.at, []).append(vine)
    if not found or r.reward is None or r.failed:
        return r if r.failed else replace(r, reward=float("nan"))
    starts = sorted(found)
    values = [_mean([reward_of(v) for v in found[at] if v.reward is not None and not v.failed]) for at in starts]
    worth = [*values, reward_of(r)]
    credit_T = torch.zeros(len(r))
    for j, at in enumerate(starts):
        credit_T[at : starts[j + 1] if j + 1 < len(starts) else len(r)] = worth[j + 1] - worth[j]
    failed = any(x != x for x in worth)
    out = replace(r.but_turn(), reward=float("nan") if failed else 0.0)
    out.set_stream("reward", credit_T)
    return out


def _mean(xs: list[float]) -> float:
    return sum(xs) / len(xs) if xs else float("nan")
