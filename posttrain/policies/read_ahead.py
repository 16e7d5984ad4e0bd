"""Prompts and written answers of a step read at once: each prompt is rendered once, and all texts are tokenised in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from posttrain.core.answers import conversation, demonstration
from posttrain.core.errors import UserError
from posttrain.core.thinking import without_lead
from posttrain.core.turn import Observation
from posttrain.core.types import Prompt
from posttrain.policies.conversation import as_read
from posttrain.policies.token_ids import token_ids

if TYPE_CHECKING:
    from posttrain.policies.language import LanguagePolicy


@dataclass
class Ahead:
    """What was read ahead: observations by prompt, token ids by text."""

    seen: dict[int, tuple[Prompt, Observation]] = field(default_factory=dict)
    ids: dict[str, list[int]] = field(default_factory=dict)

    def observation(self, prompt: Prompt) -> Observation | None:
        found = self.seen.get(id(prompt))
        return found[1] if found is not None and found[0] is prompt else None


def read_ahead(policy: LanguagePolicy, prompts: Sequence[Prompt]) -> Ahead:
    """Prompts that come with written answers; nothing of the others, nor of conversations that are imitated turn by turn."""
    if not hasattr(
        policy.tokenizer, "backend_tokenizer"
    ):  # one that is not compiled gains nothing, and may read one text only
        return Ahead()
    given = [(p, list(_answers(p))) for p in prompts]
    some = [(p, texts) for p, texts in given if texts]
    read = [as_read(policy.tokenizer, policy._told(p), policy.thinking) for p, _ in some]
    named = [(text, f"prompt {p.id!r}") for (text, _), (p, _) in zip(read, some, strict=True)]
    named += [
        (without_lead(lead, text), f"an answer to prompt {p.id!r}")
        for (_, lead), (p, texts) in zip(read, some, strict=True)
        for text in texts
    ]
    try:
        ids = token_ids(policy.tokenizer, named)
    except UserError:  # it is told where the text is asked for
        return Ahead()
    seen = {
        id(p): (p, Observation(torch.tensor(tokens, dtype=torch.long), lead=lead))
        for (p, _), (_, lead), tokens in zip(some, read, ids, strict=False)
        if tokens
    }
    return Ahead(seen, {text: x for (text, _), x in zip(named[len(some) :], ids[len(some) :], strict=True)})


def _answers(prompt: Prompt) -> Iterator[str]:
    info: Any = prompt.info
    listed = [answer.get("text") for answer in info.get("ranked", ()) if isinstance(answer, dict)]
    imitated = None if conversation(prompt) is not None else demonstration(prompt)
    found = [info.get("chosen"), info.get("rejected"), info.get("response"), *listed]
    found = found if any(isinstance(x, str) for x in found) else [imitated]
    yield from (x for x in found if isinstance(x, str))
