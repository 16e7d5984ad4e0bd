"""Continue a partial answer: used by trees, resets to demonstrations and Monte Carlo values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn
from posttrain.core.types import End, Prompt, Rollout, ended


def stem(policy: Policy, prompt: Prompt) -> Rollout:
    """An answer without actions."""
    return Rollout(prompt, [Turn.empty(policy.observe(prompt))], End.TRUNCATED, "length")


def cut(policy: Policy, rollout: Rollout, at: int) -> Rollout:
    """The first `at` actions of an answer, to be continued."""
    row = rollout.row
    short = {k: getattr(row, k)[:at] for k in ("actions", "logp_T", "mask_T", "version_T")}
    text = row.observation.lead + policy.decode(short["actions"])
    turn = Turn(row.observation, **short, text=text, stopped=False)
    return replace(rollout, turns=[turn], end=End.TRUNCATED, stop="length", reward=None, rewards={}, info={})


def room(policy: Policy, rollout: Rollout, how: Sampling) -> int:
    """How many more actions an answer may have: 0 once it has stopped or is as long as allowed."""
    longest = min(how.max_tokens, getattr(policy, "T", how.max_tokens))
    return 0 if not rollout.truncated else max(longest - len(rollout), 0)


def resume(
    policy: Policy, stems: Sequence[Rollout], keys: Sequence[Sequence[int]], how: Sampling, step: int, more: int | None = None
) -> list[list[Rollout]]:  # fmt: skip
    """Each stem continued once per key (its random identity), until it ends, is how.max_tokens long in all, or has `more`
    further actions. Continuations are whole answers: the stem's actions, log-probabilities and mask come first."""
    out: list[list[Rollout]] = [[s for _ in k] for s, k in zip(stems, keys, strict=True)]
    sizes = sorted({(len(s), room(policy, s, how)) for s in stems})
    for length, left in sizes:
        if left == 0:
            continue
        which = [i for i, s in enumerate(stems) if (len(s), room(policy, s, how)) == (length, left)]
        some = replace(how, max_tokens=left if more is None else min(more, left))
        made = policy.act([stems[i].turns for i in which], [keys[i] for i in which], some, version=step)
        for i, turns in zip(which, made, strict=True):
            out[i] = [_grown(stems[i], turn) for turn in turns]
    return out


def _grown(begun: Rollout, turn: Turn) -> Rollout:
    end, stop = ended(turn.stopped)
    return replace(begun, turns=[turn], end=end, stop=stop, info=dict(begun.info))
