"""Play on from the middle of an episode: for trees, for tries from an expert's states, for a revision from where it went wrong.

The episode is opened anew with the key of the one it branches from and is given the same turns, so it stands in the same state; what it replies
must be what was seen then, id for id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.turn import Turn
from posttrain.core.types import Branch, Prompt, Rollout
from posttrain.rollouts.episode import Play, Playing, end, in_a_loop, opened, rollouts_of, take


@dataclass(frozen=True)
class Stem:
    """The turns that an episode of one role begins with, and the key that its environment draws from."""

    prompt: Prompt
    turns: Sequence[Turn]
    index: int  # of the new episode among those of its prompt: its own random identity
    key: int | None = None  # of the episode that it branches from; None: one of its own
    parent: int = 0  # the index of that episode


def stem_of(ask: RolloutRequest, rollout: Rollout, turns: int, index: int, step: int | None = None) -> Stem:
    """The first turns of a rollout that was made at this step (now, if not given) with the request's seed."""
    if not 0 <= turns <= len(rollout.turns):
        raise UserError(f"this episode has {len(rollout.turns)} turns; it cannot be played on from turn {turns}")
    key = rng.key(ask.seed, ask.step if step is None else step, rollout.prompt.id, rollout.index, "episode")
    return Stem(rollout.prompt, rollout.turns[:turns], index, key, rollout.index)


def play_on(ask: RolloutRequest, stems: Sequence[Stem], max_turns: int = 0) -> list[Rollout]:
    """An episode from each stem, in order, all at a time; its rollout has the turns of the stem first and says where it branched off."""
    limit = max_turns or ask.env.limits.turns
    with opened(ask, [(s.prompt, s.index, s.key) for s in stems]) as playing:
        play = Play(ask, playing, limit)

        async def run() -> None:
            for stem, x in zip(stems, playing, strict=True):
                await repeat(ask, stem, x, limit)
            await play.run()

        try:
            in_a_loop(run())
        finally:
            play.samplers.close()
    return [_branched(stem, x) for stem, x in zip(stems, playing, strict=True)]


async def repeat(ask: RolloutRequest, stem: Stem, x: Playing, max_turns: int) -> None:
    """Give the episode the turns of its stem; what it replies must be what they saw."""
    for k, turn in enumerate(stem.turns):
        if x.stop or not _same(x, turn):
            x.stop = x.stop or "broken"
            x.info["error"] = f"turn {k + 1} of this episode saw something else when it was made again"
            end(x)
            return
        x.turns.setdefault(x.role, []).append(replace(turn, streams_T={}, reward=None))
        x.moves.append(x.role)
        take(ask, x, await x.talk.reply(turn, len(x.moves)), max_turns)


def _same(x: Playing, turn: Turn) -> bool:
    """Whether the episode shows what this turn saw; of the first turn that is the prompt as it is now."""
    return torch.equal(x.seen.tokens.cpu(), turn.observation.tokens.cpu())


def _branched(stem: Stem, x: Playing) -> Rollout:
    made = rollouts_of(x)
    if len(made) != 1:
        raise UserError("an episode of several roles cannot be played on from its middle; only those of one role can")
    at = sum(len(t) + (len(t.observation.tokens) if k else 0) for k, t in enumerate(stem.turns))
    return replace(made[0], branch=Branch(stem.parent, at))
