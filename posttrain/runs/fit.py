"""Rows that do not fit into the model's window are left out before a run begins, and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posttrain.core.answers import conversation, demonstration, imitable
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Message, Prompt
from posttrain.environments.conversions import KINDS, compared
from posttrain.environments.data import DataEnvironment
from posttrain.environments.language.listed import Listed
from posttrain.environments.mapped import each
from posttrain.environments.mixed import Mixed
from posttrain.environments.stream import Stream
from posttrain.environments.tooled import Tooled
from posttrain.policies.window import at_most, token_count


def fit(env: Environment, policy: Policy, method: Method | None, how: Sampling) -> Environment:
    """The environment without the rows that the policy has no room for; ids stay, so that the draws of all others do.

    A prompt needs room for an answer beside it; a written answer, both of a pair, all of a list must fit with their prompt. A task
    that is not made of rows is not changed: there a prompt that does not fit is an error when it comes.
    """
    kind = method.rollout.card.data if method else ""
    if kind == "demonstrations":
        env = answered(env)
    window = int(getattr(policy, "window", 0))
    if not window or kind == "steps" or (method and method.rollout.card.at_test):
        return env
    if isinstance(env, Mixed):
        return Mixed({name: fit(one, policy, method, how) for name, one in env.tasks.items()})
    if isinstance(env, Tooled):
        return env.over(fit(env.env, policy, method, how))
    if not isinstance(env, (DataEnvironment, Listed, Stream)):
        return env
    if how.max_tokens >= window and not kind:
        raise UserError(
            f"--sampling.max-tokens {how.max_tokens} leaves no room for a prompt in this model's window of {window:,} positions; "
            f"use {window // 2} or fewer"
        )
    long: Counter[str] = Counter()
    if kind == "demonstrations" and isinstance(env, DataEnvironment):
        _can_be_learned(policy, env.splits.get("train", ()))

    def kept(p: Prompt, split: str) -> Prompt | None:
        if needed(policy, p, kind if split == "train" or kind in KINDS else "", how, window) <= window:
            return p
        long[split] += 1
        return None

    fitted = each(env, kept)
    return _told(env, fitted, long, limit(kind, window, how), method is not None)


def answered(env: Environment) -> Environment:
    """Without the training rows that have no answer to imitate, such as conversations that end with the user."""
    if not isinstance(env, DataEnvironment):
        return env
    train = env.splits.get("train", ())
    kept = tuple(p for p in train if imitable(p))
    if len(kept) == len(train) or not kept:
        return env
    left_out = {**env.left_out, "training rows without an answer to imitate": len(train) - len(kept)}
    return replace(env, splits={**env.splits, "train": kept}, left_out=left_out)


def _can_be_learned(policy: Any, prompts: Sequence[Prompt]) -> None:
    """A template that rewrites earlier turns is told before anything is loaded or trained."""
    first = next((p for p in prompts if conversation(p) is not None), None)
    if first is not None and hasattr(policy, "imitated"):
        policy.imitated(first, conversation(first))


def needed(policy: Any, p: Prompt, kind: str, how: Sampling, window: int) -> int:
    """Positions that a prompt takes with what is written after it; never too few, exact where it matters."""
    if not kind:
        return token_count(policy, p, limit=window - how.max_tokens) + how.max_tokens
    said = conversation(p)
    if kind == "demonstrations" and said is not None:
        most = at_most(policy, whole := replace(p, content=said))
        if most <= window:
            return most
        return learned(policy, p, said) if hasattr(policy, "imitated") else token_count(policy, whole)
    if kind == "demonstrations":
        texts = [demonstration(p)]
    elif kind in KINDS:
        texts = compared(p, kind)
    else:
        texts = [a.get("text") for a in p.info.get("answers", ())]
    return max(token_count(policy, p, t if isinstance(t, str) else None, window) for t in texts or [None])


def learned(policy: Any, p: Prompt, said: Sequence[Message]) -> int:
    """Tokens of a conversation as it is learned: its pieces apart, each answer with its end."""
    return sum(len(t.observation.tokens) + len(t) for t in policy.imitated(p, said).turns)


def limit(kind: str, window: int, how: Sampling) -> str:
    """The reason, for people."""
    if kind:
        return f"rows of more than {window:,} tokens with their answers, which is the model's window"
    room = f"a window of {window:,} with room for an answer of {how.max_tokens:,}"
    return f"rows whose prompt has more than {window - how.max_tokens:,} tokens ({room})"


def _told(env: Any, fitted: Any, long: Counter[str], reason: str, both: bool) -> Environment:
    """The fitted environment with its count of what was left out; an error where nothing is left, of `both` splits or of all."""
    if isinstance(fitted, Stream):
        fitted.understood = fitted.understood.noting(f"{reason} are stepped over")
        return fitted
    if not long:
        return env  # type: ignore[no-any-return]
    sizes = fitted.splits if isinstance(fitted, DataEnvironment) else {"train": fitted.train, "test": fitted.test}
    empty = [split for split, n in long.items() if n and not sizes.get(split)]
    if empty and (both or not any(sizes.values())):
        raise UserError(
            f"{env.name}: no row is left to {empty[0]} on; all {long[empty[0]]:,} are {reason}; use a model with a longer window, "
            "or shorter texts"
        )
    return replace(fitted, left_out={**env.left_out, reason: sum(long.values())})  # type: ignore[no-any-return]
