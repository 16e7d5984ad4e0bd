"""Many written answers as rollouts at once: each prompt is rendered and read once, and all texts are tokenised in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.thinking import without_lead
from posttrain.core.turn import Observation
from posttrain.core.types import Origin, Prompt, Rollout
from posttrain.policies.conversation import as_read
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.token_ids import token_ids


def written_all(policy: Policy, asked: Sequence[tuple[Prompt, Sequence[Any]]]) -> list[list[Rollout]]:
    """What `policy.written` gives for each answer to each prompt; answers to one prompt share its observation."""
    own = type(policy)
    if not isinstance(policy, LanguagePolicy) or any(
        getattr(own, name) is not getattr(LanguagePolicy, name)
        for name in ("written", "observe", "encode", "rendered", "lead", "_told", "_ids")
    ):
        return [[policy.written(p, text) for text in texts] for p, texts in asked]
    read = [as_read(policy.tokenizer, policy._told(p), policy.thinking) for p, _ in asked]
    rest = [[without_lead(lead, text) for text in texts] for (_, lead), (_, texts) in zip(read, asked, strict=True)]
    named = [(text, f"prompt {p.id!r}") for (text, _), (p, _) in zip(read, asked, strict=True)]
    named += [
        (text, f"an answer to prompt {p.id!r}") for texts, (p, _) in zip(rest, asked, strict=True) for text in texts
    ]
    ids = iter(token_ids(policy.tokenizer, named))
    seen = []
    for (p, _), (_, lead) in zip(asked, read, strict=True):
        tokens = next(ids)
        if not tokens:
            raise UserError(f"prompt {p.id!r} is empty after tokenisation")
        seen.append(Observation(torch.tensor(tokens, dtype=torch.long), lead=lead))
    end = [policy.tokenizer.eos_token_id]
    return [
        [_rollout(p, one, next(ids) + end, one.lead + text) for text in texts]
        for (p, _), one, texts in zip(asked, seen, rest, strict=True)
    ]


def _rollout(prompt: Prompt, seen: Observation, ids: list[int], text: str) -> Rollout:
    actions = torch.tensor(ids, dtype=torch.long)
    own_T, none_T = torch.ones(len(ids), dtype=torch.bool), torch.zeros(len(ids))
    return Rollout.single(prompt, seen, actions, none_T, own_T, text, origin=Origin.WRITTEN)
