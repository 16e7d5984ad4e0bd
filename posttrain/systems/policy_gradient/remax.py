"""ReMax: REINFORCE whose baseline is what the likeliest answer earned: one more answer instead of a critic.

Departures: the KL is part of the reward at RLOO's price, 0.03, and the greedy answer pays none; the paper tunes its
own. Its reward model must be given (`--reward runs/NAME`); without one the task's own grade pays. One answer per
prompt and its greedy baseline are the paper's.
"""

from __future__ import annotations

from dataclasses import replace

from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, select
from posttrain.core.types import Group, Rollout
from posttrain.methods.reinforce import reinforce
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.select.valid import reward_of

# ---- how answers are made


@rollout(title="Sample and greedy (ReMax)", paper="arXiv:2310.10505", base="sample")
def sample_and_greedy(ask: RolloutRequest, n: int = 1
) -> list[Group]:  # fmt: skip
    """Sample and greedy (ReMax): n answers to each prompt, and one more that takes the likeliest token every time.

    The greedy one is the last of its group and says so (`info["greedy"]`); the filter `greedy_baseline` takes it out.
    """
    groups: list[Group] = sample(ask, n=n)
    greedy = sample(ask.but(sampling=replace(ask.sampling, temperature=0.0)), n=1)
    for group, (best,) in zip(groups, (g.rollouts for g in greedy), strict=True):
        group.rollouts.append(replace(best, index=n, info=best.info | {"greedy": True}))
    return groups


# ---- which groups are learned from


@select(title="Greedy baseline (ReMax)", paper="arXiv:2310.10505")
def greedy_baseline(groups: list[Group]) -> list[Group]:
    """Greedy baseline (ReMax): what the likeliest answer earned is taken off the reward of the others; it leaves.

    R_i <- R_i - R_greedy;  failed answers stay failed;  a group without a greedy answer that could be scored goes
    """
    out = []
    for group in groups:
        bars = [reward_of(r) for r in group.scored if r.info.get("greedy")]
        if bars:
            kept = group.only([i for i, r in enumerate(group.rollouts) if not r.info.get("greedy")])
            out.append(replace(kept, rollouts=[_above(r, bars[0]) for r in kept.rollouts]))
    return out


def _above(rollout: Rollout, bar: float) -> Rollout:
    """What its turns earned stays with them; nan - bar is nan: still failed."""
    return rollout if rollout.reward is None else replace(rollout, reward=rollout.reward - bar)


# ---- the method

remax = method(
    reinforce.but(
        name="remax", title="ReMax", paper="arXiv:2310.10505", doc=__doc__,
        rollout=sample_and_greedy, select=(greedy_baseline,), shaping=(kl_in_reward.but(coef=0.03),),
    )
)  # fmt: skip
