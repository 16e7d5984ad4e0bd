"""Conversations of which some turns are imitated and others only read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.core.answers import conversation
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Message, Prompt


@rollout(title="Some turns", base="demonstrations", data="demonstrations")
def some_turns(ask: RolloutRequest) -> list[Group]:
    """Some turns: of a written conversation (`info["imitated"]`, its last message) the turns of the assistant that `info["learned"]` marks.

    mask_t = 0 in every other turn: what was done wrong is read, and not learned
    """
    groups = []
    for p in ask.prompts:
        said, learned = conversation(p), p.info.get("learned")
        if said is None or not isinstance(learned, list | tuple):
            raise UserError(f"prompt {p.id!r} has no conversation with marked turns (info imitated and learned)")
        whole: Any = ask.policy.imitated(p, said)  # type: ignore[attr-defined]
        if len(whole.turns) != len(learned):
            raise UserError(
                f"prompt {p.id!r}: {len(learned)} turns are marked, and the chat template writes {len(whole.turns)}"
            )
        for turn, on in zip(whole.turns, learned, strict=True):
            turn.mask_T = turn.mask_T & torch.tensor(bool(on))
        whole.reward = 1.0
        groups.append(Group(p, [whole]))
    return groups


def marked(name: str, messages: Sequence[Message], learned: Sequence[bool]) -> Prompt:
    """A conversation as a prompt of `some_turns`; what comes after the assistant's last turn is left out."""
    last = max(i for i, m in enumerate(messages) if m["role"] == "assistant")
    return Prompt(name, tuple(messages[:last]), info={"imitated": messages[last], "learned": list(learned)})
