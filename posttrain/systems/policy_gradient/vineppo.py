"""VinePPO: PPO without a critic: the worth of a state is what 9 fresh answers from it earn.

States are the beginnings of lines. The cost: from each line of each of the 8 answers 9 more are sampled to its end, so that
a step samples 8 (1 + 9 lines) answers per prompt, with solutions of 6 lines about 27 times what `grpo` does (a vine is on
average half as long); `--rollout "vine(k=3)"` takes a third of it.

Departures: the paper samples at temperature 0.6 and top-p 0.9, here 1 and 1 (`--sampling.temperature 0.6`); it starts from a
model fine-tuned on solutions; its step has 64 prompts, here 16. Lines 9 vines each, 8 answers, KL 1e-4, credit whitened over
the batch, clip 0.2 and 2 passes in 8 minibatches are the authors'.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.advantages.dense import dense
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, select
from posttrain.core.types import Branch, Group, Rollout
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.rollouts.resume import cut, resume
from posttrain.rollouts.sample import sample
from posttrain.rollouts.step_labels import step_ends
from posttrain.select.valid import reward_of

# ---- how answers are made


@rollout(title="Vines (VinePPO)", paper="arXiv:2410.01679", base="sample")
def vine(ask: RolloutRequest, n: int = 8, k: int = 9, level: str = "line", tokens: int = 0
) -> list[Group]:  # fmt: skip
    """Vines (VinePPO): n answers per prompt and, from every state where a segment of one begins, k more to say its worth.

    A segment is a step of this level (line, sentence ...); with tokens > 0 it is so many tokens. The k answers stand behind
    the n, say so (`info["vine"]`), and have a `branch`; the filter `vine_values` turns what they earn into credit and takes
    them out.
    """
    if min(n, k) < 1 or tokens < 0:
        raise UserError(f"got n={n}, k={k}, tokens={tokens}; n and the vines are each at least 1, tokens 0 or more")
    groups: list[Group] = sample(ask, n=n)
    places = [
        (g, i, at)
        for g in groups
        for i, r in enumerate(g.rollouts)
        for at in (range(0, len(r), tokens) if tokens else [0, *step_ends(ask.policy, r, level)[:-1]])
    ]
    stems = [cut(ask.policy, g.rollouts[i], at) for g, i, at in places]
    keys = [[rng.key(ask.seed, ask.step, g.prompt.id, "vine", i, at, j) for j in range(k)] for g, i, at in places]
    for (g, i, at), made in zip(places, resume(ask.policy, stems, keys, ask.sampling, ask.step), strict=True):
        for r in made:
            told = r.info | {"vine": True}
            g.rollouts.append(replace(r, index=len(g.rollouts), branch=Branch(i, at), info=told))
    return groups


# ---- which groups are learned from


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


# ---- the method

vineppo = method(
    grpo.but(
        name="vineppo", title="VinePPO", paper="arXiv:2410.01679", doc=__doc__,
        rollout=vine, select=(vine_values,), advantage=dense.but(whiten=True), aggregate=token_mean,
        terms=(kl.but(coef=1e-4),), epochs=2, minibatches=8,
    )
)  # fmt: skip
