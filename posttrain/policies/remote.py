"""A model behind an OpenAI-compatible API: it answers prompts, for evaluation and for data; it cannot be trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import End, Origin, Prompt, Rollout
from posttrain.policies.chat_api import ChatAPI, NoReply, Reply
from posttrain.policies.conversation import only_text

_NEWER = "max_completion_tokens"  # what some servers call max_tokens


class RemoteModel:
    """`sample` asks the server once per answer, with a seed that belongs to (seed, step, prompt, sample).

    Token ids are not known, so an answer has none: `info["tokens"]` is the server's count. An answer that did not come is
    masked (`End.ENV_ERROR`) with the reason in `info["error"]`.
    """

    temperature = 1.0

    def __init__(self, api: ChatAPI) -> None:
        self.api, self.name = api, api.model
        self._limit, self._tried = "max_tokens", False

    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0
    ) -> list[list[Rollout]]:
        """n answers to each prompt."""
        which = [(p, i) for p in prompts for i in range(n)]
        bodies = [self.body(p, how, rng.key(seed, step, p.id, i) & 0x7FFFFFFF) for p, i in which]
        told = self._asked(bodies)
        fatal = next((t for t in told if isinstance(t, NoReply) and t.fatal), None)
        if fatal is not None:
            raise UserError(fatal.why)
        made = [rollout(p, i, t) for (p, i), t in zip(which, told, strict=True)]
        return [made[k : k + n] for k in range(0, len(made), n)]

    def body(self, prompt: Prompt, how: Sampling, seed: int) -> dict[str, Any]:
        """The request for one answer; settings that are not OpenAI's own are sent only where they are set."""
        beyond = {k: v for k, v in (("top_k", how.top_k), ("min_p", how.min_p)) if v}
        asked = {
            "messages": only_text(prompt.content),
            "temperature": how.temperature,
            "top_p": how.top_p,
            "seed": seed,
        }
        return {**asked, **beyond, self._limit: how.max_tokens}

    def _asked(self, bodies: list[dict[str, Any]]) -> list[Reply | NoReply]:
        """The replies; a server that knows the limit by its newer name only is asked again with that."""
        if not self._tried and bodies:
            self._tried, first = True, self.api.ask(bodies[:1])
            if isinstance(first[0], NoReply) and first[0].status == 400 and _NEWER in first[0].why:
                self._limit = _NEWER
                return self.api.ask([renamed(b) for b in bodies])
            return first + self.api.ask(bodies[1:])
        return self.api.ask(bodies)


def renamed(body: dict[str, Any]) -> dict[str, Any]:
    return {_NEWER if k == "max_tokens" else k: v for k, v in body.items()}


def rollout(prompt: Prompt, index: int, told: Reply | NoReply) -> Rollout:
    """A reply as a rollout without token ids."""
    none = torch.zeros(0)
    text = told.text if isinstance(told, Reply) else ""
    made = Rollout.single(prompt, none.long(), none.long(), none, none.bool(), text, origin=Origin.WRITTEN, index=index)
    if isinstance(told, NoReply):
        return replace(made, end=End.ENV_ERROR, stop="broken", info={"error": told.why, "tokens": 0})
    cut = told.stop == "length"
    info = {"tokens": told.tokens, "finish": told.stop}
    return replace(made, end=End.TRUNCATED, stop="length", info=info) if cut else replace(made, info=info)
