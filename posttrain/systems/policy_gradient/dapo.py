"""DAPO: GRPO with a higher upper clip, tokens weighed alike, equal groups and unfinished answers left out, no KL.

Departures: the paper samples 16 answers to each of 512 prompts and takes 16 updates per batch; here 8 answers
(`--num-generations 16`) and 4 updates. Its dynamic sampling draws new prompts until the batch is full again; here
groups of equals are dropped and not replaced, so that a step may learn from few. Its soft penalty for nearly overlong
answers (16,384 to 20,480 tokens) is not here, only the masking of those cut off. Clip 0.2 and 0.28, the token mean
and no KL are the paper's.
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
from posttrain.select.zero_variance import zero_variance


@select(paper="arXiv:2503.14476")
def overlong(groups: list[Group], how: str = "mask") -> list[Group]:
    """Overlong filtering (DAPO): an answer cut off by the length limit was not finished, so it is not judged.

    how="mask": its tokens leave the loss (and, as a row without valid tokens, its group's statistics);
    how="drop": it leaves its group, and a group left empty goes.
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


dapo = method(
    grpo.but(
        name="dapo", title="DAPO", paper="arXiv:2503.14476", doc=__doc__,
        loss=clip_higher, aggregate=token_mean, select=(overlong, zero_variance), terms=(), minibatches=4,
    )
)  # fmt: skip
