"""Episodes by turn: how many, why they stopped, what was called; and the conversation as messages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from posttrain.core.types import Message, Rollout


def turn_figures(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Turns and calls per episode, how often each reason ended one, and what environments measure beside the reward."""
    many = max(len(rollouts), 1)
    out: dict[str, Any] = {"turns_per_episode": sum(len(r.turns) for r in rollouts) / many}
    out["stops"] = dict(Counter(r.stop for r in rollouts).most_common())
    if any("tools" in r.info for r in rollouts):
        out["calls_per_episode"] = (
            sum(len(t.get("calls", ())) for r in rollouts for t in r.info.get("tools", ())) / many
        )
        out["faults_per_episode"] = (
            sum(len(t.get("faults", ())) for r in rollouts for t in r.info.get("tools", ())) / many
        )
    names = sorted({name for r in rollouts for name in r.info.get("metrics", ())})
    if names:
        told = {n: [r.info["metrics"][n] for r in rollouts if n in r.info.get("metrics", {})] for n in names}
        out["metrics"] = {n: math.fsum(xs) / len(xs) for n, xs in told.items()}
    return out


def is_episode(r: Rollout) -> bool:
    """Whether an environment with turns made it."""
    return len(r.turns) > 1 or "replies" in r.info


def by_turn(r: Rollout) -> list[dict[str, Any]]:
    """Each turn: what was said, what it earned, and what the environment answered."""
    heard = [messages for role, messages in r.info.get("replies", ()) if role == r.role]
    rows: list[dict[str, Any]] = []
    for i, t in enumerate(r.turns):
        row = {"said": t.text, "reward": t.reward, "replied": heard[i] if i < len(heard) else None}
        rows.append({k: v for k, v in row.items() if v is not None})
    return rows


def conversation(r: Rollout) -> list[Message]:
    """The prompt and everything that was said after it, as messages that a chat template reads."""
    out = [dict(m) for m in r.prompt.content]
    for row in by_turn(r):
        out += [{"role": "assistant", "content": row["said"]}, *row.get("replied", ())]
    return out
