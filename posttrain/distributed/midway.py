"""Answers that change weights on the way, for opportunistic runs: sampled in pieces, each by the newest weights there are when it begins.

Between two pieces a worker looks whether newer weights were published, loads them, and reads each unfinished answer again under them. Every token
has the version that sampled it (`version_T`), and an answer of several versions keeps them as a stream (`versions`). Without newer weights a
piece costs one more reading of what was written so far, so an answer has at most eight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from posttrain.core import rng
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Rollout
from posttrain.distributed.shards import make
from posttrain.rollouts.resume import resume, room

PIECES = 8  # of an answer, at most
LEAST = 16  # tokens of a piece


def divisible(rollout: Part, env: Any) -> bool:
    """Whether answers can be made in pieces: plain ones, of a single turn."""
    return rollout.name == "sample" and not env.opens


def made(rollout: Part, ask: RolloutRequest, version: int, renew: Callable[[], int]) -> list[Group]:
    """The groups of a shard that was begun by this version; `renew` takes newer weights if there are any, and says which there are now."""
    how, policy = ask.sampling, next(iter(ask.policies.values()))
    piece = max(LEAST, -(-how.max_tokens // PIECES))
    groups = make(rollout, ask.but(sampling=replace(how, max_tokens=min(piece, how.max_tokens))), version)
    while unfinished := [r for g in groups for r in g.rollouts if _goes_on(policy, r, how)]:
        version = renew()
        keys = [[rng.key(ask.seed, ask.step, r.prompt.id, r.index, len(r))] for r in unfinished]
        grown = resume(policy, unfinished, keys, how, version, more=piece)
        longer = {id(old): new for old, (new,) in zip(unfinished, grown, strict=True)}
        for g in groups:
            g.rollouts = [longer.get(id(r), r) for r in g.rollouts]
    for r in (r for g in groups for r in g.rollouts):
        spanned(r)
    return groups


def _goes_on(policy: Policy, r: Rollout, how: Sampling) -> bool:
    """It has neither ended nor reached the limit, and the model has positions left."""
    window = getattr(policy, "longest", 0)
    return room(policy, r, how) > 0 and (not window or len(r.context) + len(r) < window)


def spanned(r: Rollout) -> None:
    """An answer of several versions keeps the one of each token for who reads the database."""
    if r.versions[0] != r.versions[1]:
        r.set_stream("versions", r.row.version_T)
