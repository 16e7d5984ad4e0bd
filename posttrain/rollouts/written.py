"""Written answers: demonstrations for supervised learning, pairs for preference learning."""

from __future__ import annotations

from posttrain.core.answers import conversation, demonstration
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Rollout


@rollout(data="demonstrations")
def demonstrations(ask: RolloutRequest) -> list[Group]:
    """Demonstrations: the answer that comes with the prompt (`info["demonstration"]`, or its gold answer); of a conversation
    (`info["imitated"]`, its last message) every turn of the assistant."""
    groups = []
    for p in ask.prompts:
        said = conversation(p)
        if said is not None and hasattr(ask.policy, "imitated"):
            whole: Rollout = ask.policy.imitated(p, said)
            whole.reward = 1.0
            groups.append(Group(p, [whole]))
            continue
        text = demonstration(p)
        if text is None:
            raise UserError(f"prompt {p.id!r} has no demonstration: supervised learning needs an answer text per row")
        made = ask.policy.written(p, text)
        made.reward = 1.0
        groups.append(Group(p, [made]))
    return groups


@rollout(data="pairs", provides=("chosen_P", "rejected_P"))
def pairs(ask: RolloutRequest) -> list[Group]:
    """Pairs: the preferred and the other answer that come with the prompt (`info["chosen"]`, `info["rejected"]`)."""
    groups = []
    for p in ask.prompts:
        missing = [k for k in ("chosen", "rejected") if not isinstance(p.info.get(k), str)]
        if missing:
            raise UserError(f"prompt {p.id!r} has no {' or '.join(missing)} answer: preference learning needs pairs")
        chosen, rejected = ask.policy.written(p, p.info["chosen"]), ask.policy.written(p, p.info["rejected"])
        chosen.reward, rejected.reward = 1.0, 0.0
        groups.append(Group(p, [chosen, rejected], pairs=((0, 1),)))
    return groups
