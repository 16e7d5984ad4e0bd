"""Answers that some policy gave earlier, with their log-probabilities and rewards: learning from a log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import End, Group, Origin, Prompt, Rollout


@rollout(title="Logged answers", data="logs")
def logged(ask: RolloutRequest, n: int | None = None, logp: bool = True) -> list[Group]:
    """Logged answers: those that come with the prompt, `info["answers"]`, or a log's: `--task log.jsonl`, `--task runs/NAME`.

    Each is {"text": ...} or {"tokens": [...]}, with "logp": [...] and "reward" where they are known. Token ids are used as
    they are. If the end of a text has no log-probability, it is not an action. n: only so many of them, the next ones at
    each step, in turn (None: all). logp=False: log-probabilities of the policy that gave them are not needed (CoPG,
    imitation) and stay 0.
    """
    groups = []
    for p in ask.prompts:
        told = p.info.get("answers")
        if not isinstance(told, (list, tuple)) or not told:
            raise UserError(f"prompt {p.id!r} has no logged answers; give it answers=[{{'text': ..., 'logp': [...]}}]")
        first, count = (0, len(told)) if n is None else (ask.step * n, n)
        some = [told[(first + i) % len(told)] for i in range(min(count, len(told)))]
        groups.append(Group(p, [replace(_read(ask.policy, p, a, logp), index=i) for i, a in enumerate(some)]))
    return groups


def _read(policy: Policy, prompt: Prompt, answer: dict[str, Any], logp: bool) -> Rollout:
    made = _actions(policy, prompt, answer)
    reward = answer.get("reward")
    made.reward = None if reward is None else float(reward)
    made.rewards = {} if reward is None else {"logged": float(reward)}
    if not logp:
        return made
    known = answer.get("logp") or ()
    ended = (
        hasattr(policy, "tokenizer") and "tokens" not in answer
    )  # a text gets an end token that may not have been logged
    if ended and known and len(known) == len(made) - 1:  # it is no action then
        short = {k: getattr(made.row, k)[:-1] for k in ("actions", "mask_T", "version_T")}
        made = replace(made.but_turn(**short, stopped=False), end=End.TRUNCATED, stop="length")
    if len(known) != len(made) or not len(made):
        got = f"{len(known)} log-probabilities" if known else "no log-probabilities"
        raise UserError(
            f"an answer of prompt {prompt.id!r} has {len(made)} tokens and {got}; this method weighs answers by those of "
            "the policy that gave them: log one a token, or say --rollout 'logged(logp=False)'"
        )
    return made.but_turn(logp_T=torch.tensor(known, dtype=torch.float32))


def _actions(policy: Policy, prompt: Prompt, answer: dict[str, Any]) -> Rollout:
    """The answer as a rollout whose log-probabilities are 0: from its token ids where they were logged, else its text."""
    if "tokens" not in answer:
        made: Rollout = policy.written(prompt, answer["text"])
        return made
    actions = torch.tensor(answer["tokens"], dtype=torch.long)
    size = len(policy.tokenizer) if hasattr(policy, "tokenizer") else int(getattr(policy, "V", 0))
    if not len(actions) or int(actions.min()) < 0 or int(actions.max()) >= size:
        raise UserError(
            f"an answer of prompt {prompt.id!r} has token ids that are not of this model (0 to {size - 1}); was it logged with "
            "another one? leave the ids out and give its text"
        )
    mask_T = torch.tensor(answer.get("mask") or [True] * len(actions), dtype=torch.bool)
    if len(mask_T) != len(actions):
        raise UserError(f"an answer of prompt {prompt.id!r} has {len(actions)} token ids and a mask of {len(mask_T)}")
    seen, zeros_T = policy.observe(prompt), torch.zeros(len(actions))
    text = answer.get("text") or seen.lead + policy.decode(actions)
    return Rollout.single(prompt, seen, actions, zeros_T, mask_T, text, origin=Origin.LOGGED)
