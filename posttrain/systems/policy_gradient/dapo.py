"""DAPO: GRPO with a higher upper clip, tokens weighed alike, batches refilled until every group teaches, long answers paid for.

Departures: none known in the formulas. 16 answers per prompt, clip 0.2 and 0.28, the token mean, no KL and at most 10
rounds of prompts are the authors'; they take 16 updates from 512 prompts per step, so that each sees 32, at a rate of 1e-6
that stays (`--prompts 512 --minibatches 16`). Here 16 prompts and 4 updates, each of 4 prompts: with 16 updates of a single
prompt each the embedded model fell from 53 to 29% right in 4 steps and was at 54% after 10, with 4 at 87%. Where 10
rounds do not fill a batch they stop the run, here the step learns from what there is and says so. A fifth of the run's
`--sampling.max-tokens` is the share where length is punished (4,096 of 20,480 in the paper). Overlong filtering, which
the paper tries first and its punishment replaces, is off: `--select "overlong + zero_variance" --shaping none`.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from posttrain.core.errors import unknown
from posttrain.core.method import method
from posttrain.core.registry import select
from posttrain.core.types import Group, Rollout
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.dapo import dapo as clip_higher
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.soft_overlong import soft_overlong
from posttrain.rollouts.sample import sample
from posttrain.select.zero_variance import zero_variance

# ---- which answers are trained on


@select(paper="arXiv:2503.14476")
def overlong(groups: list[Group], how: str = "mask") -> list[Group]:
    """Overlong filtering (DAPO): an answer cut off by the length limit was not finished, so it is not judged.

    how="mask": its tokens leave the loss (and, as a row without valid tokens, its group's statistics);
    how="drop": it leaves its group, and a group left empty goes. Nothing then teaches a policy to end its answers.
    """
    if how not in ("mask", "drop"):
        raise unknown("way to treat overlong answers", how, ("mask", "drop"))
    if how == "mask":
        kept = [replace(g, rollouts=[_silent(r) for r in g.rollouts]) for g in groups]
    else:
        kept = [g.only([i for i, r in enumerate(g.rollouts) if not r.truncated]) for g in groups]
    return [group for group in kept if group.rollouts]


def _silent(rollout: Rollout) -> Rollout:
    """Without a token in the loss of its last context."""
    if not rollout.truncated:
        return rollout
    *earlier, last = rollout.contexts
    silent = [replace(t, mask_T=torch.zeros_like(t.mask_T)) for t in last]
    return replace(rollout, turns=[t for context in earlier for t in context] + silent)


# ---- the method

dapo = method(
    grpo.but(
        name="dapo", title="DAPO", paper="arXiv:2503.14476", doc=__doc__, rollout=sample.but(n=16),
        loss=clip_higher, aggregate=token_mean, select=zero_variance, shaping=soft_overlong, terms=(),
        minibatches=4, rounds=10,
    )
)  # fmt: skip
