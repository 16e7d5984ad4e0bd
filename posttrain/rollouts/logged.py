"""Answers that some policy gave earlier, with what it thought of them: learning from a log."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.engines.sampling import Sampling


@rollout(title="Logged answers")
def logged(
    policy: Any, prompts: list[Prompt], how: Sampling, seed: int, step: int, n: int | None = None, logp: bool = True
) -> list[Group]:
    """Logged answers: those that come with the prompt (`info["answers"]`, each `{"text": ..., "logp": [...]}`).

    n: only so many of them, the next ones at each step, in turn (None: all). logp=False: log-probabilities of the policy
    that gave them are not needed (CoPG, imitation) and stay 0.
    """
    groups = []
    for p in prompts:
        told = p.info.get("answers")
        if not isinstance(told, (list, tuple)) or not told:
            raise UserError(f"prompt {p.id!r} has no logged answers; give it answers=[{{'text': ..., 'logp': [...]}}]")
        first, count = (0, len(told)) if n is None else (step * n, n)
        some = [told[(first + i) % len(told)] for i in range(min(count, len(told)))]
        groups.append(Group(p, [_read(policy, p, answer, logp) for answer in some]))
    return groups


def _read(policy: Any, prompt: Prompt, answer: dict[str, Any], logp: bool) -> Rollout:
    made: Rollout = policy.written(prompt, answer["text"])
    if logp:
        if len(answer.get("logp") or ()) != len(made):
            got = f"{len(answer['logp'])} log-probabilities" if answer.get("logp") else "no log-probabilities"
            raise UserError(
                f"an answer of prompt {prompt.id!r} has {len(made)} tokens and {got}; this method weighs answers by those of "
                "the policy that gave them: log one a token, or say --rollout 'logged(logp=False)'"
            )
        made.logp_T = torch.tensor(answer["logp"], dtype=torch.float32)
    return made
