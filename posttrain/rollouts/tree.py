from __future__ import annotations

from dataclasses import replace

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.sampling import Sampling
from posttrain.core.types import Branch, Group, Rollout
from posttrain.rollouts.resume import cut, resume, room, stem


@rollout(title="Tree (TreePO)", paper="arXiv:2508.17445", base="sample")
def tree(ask: RolloutRequest, n: int = 8,
    fork: tuple[int, int] = (16, 2),
) -> list[Group]:  # fmt: skip
    """Tree (TreePO): n answers per prompt that grow together by segments and fork where one ends, so prefixes are shared.

    fork = (tokens of a segment, branches): after each segment every path that goes on is forked, evenly and while there
    are fewer than n paths; if all end too early, ended ones are forked at an earlier boundary. `Rollout.branch` says
    from whom and where.
    The paper also stops paths that repeat themselves, and may fork by likelihood; uniform is its robust choice.
    """
    segment, branch = fork
    if min(n, segment, branch) < 1:
        raise UserError(f"got n={n}, fork={fork}; n, the tokens of a segment and the branches are each at least 1")
    policy, how, seed, step = ask.policy, ask.sampling, ask.seed, ask.step
    trees = [[stem(policy, p)] for p in ask.prompts]
    while True:
        grow = [(tree, *begin) for tree in trees for begin in forks(tree, n, segment, branch, policy, how)]
        if not grow:
            return [Group(p, paths) for p, paths in zip(ask.prompts, trees, strict=True)]
        stems = [begun for _, _, begun, _ in grow]
        keys = [[rng.key(seed, step, s.prompt.id, slot, len(s)) for slot in slots] for _, _, s, slots in grow]
        made = resume(policy, stems, keys, how, step, more=segment)
        for (paths, parent, begun, slots), answers in zip(grow, made, strict=True):
            for slot, answer in zip(slots, answers, strict=True):
                if slot == parent:
                    paths[slot] = answer
                else:
                    paths.append(replace(answer, index=slot, branch=Branch(parent, len(begun))))


def forks(
    paths: list[Rollout], n: int, segment: int, branch: int, policy: Policy, how: Sampling
) -> list[tuple[int, Rollout, list[int]]]:
    """What grows next in one tree: (path, where from, the paths that come of it, itself or new ones), in order."""
    live = [slot for slot, path in enumerate(paths) if room(policy, path, how)]
    free = list(range(len(paths), n))
    if not live:  # all have ended: the next paths start from a boundary inside the ones there are, in turn
        starts = [(slot, (len(paths[slot]) - 1) // segment * segment) for slot in range(min(len(free), len(paths)))]
        return [(s, replace(cut(policy, paths[s], at), branch=None), [free[s]]) for s, at in starts]
    most = min(len(free), (branch - 1) * len(live))
    counts = [most // len(live) + (i < most % len(live)) for i in range(len(live))]
    order = []
    for slot, count in zip(live, counts, strict=True):
        order.append((slot, paths[slot], [slot, *free[:count]]))
        free = free[count:]
    return order
