"""Rated answers: a file of them, what a reward model with several scores learns from it, and what it then says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from posttrain.core.answers import demonstration
from posttrain.core.errors import UserError
from posttrain.core.plan import Context
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.environments.task import task

AT_ONCE = 64  # answers whose ratings are predicted together


class Ratings:
    """A file of rated answers: rows with a prompt, a response and a number for each reward."""

    def __init__(self, file: str, names: tuple[str, ...]) -> None:
        self.file, self.names = file, names

    def env(self, context: Context) -> Listed:
        """Every reward in deviations from its mean over the training rows."""
        if ("ratings", self.file) not in context.made:
            whole: Any = task(self.file)
            train, test = ([whole.prompt(i, s) for i in range(size_of(whole, s))] for s in ("train", "test"))
            told = [[self.number(p, name) for name in self.names] for p in train]
            scale = [(fmean(x), pstdev(x) or 1.0) for x in zip(*told, strict=True)]
            rows = [tuple(self.rated(p, scale) for p in some) for some in (train, test)]
            context.made["ratings", self.file] = Listed(whole.name, rows[0], rows[1])
        found: Listed = context.made["ratings", self.file]
        return found

    def number(self, p: Prompt, name: str) -> float:
        value = p.info.get(name)
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or demonstration(p) is None
        ):
            raise UserError(
                f"{self.file}: the row {p.id} has {value!r:.40} as {name!r}; a rated row is a prompt, a response and a number for each of {', '.join(self.names)}"
            )
        return float(value)

    def rated(self, p: Prompt, scale: Sequence[tuple[float, float]]) -> Prompt:
        told = [(self.number(p, name) - mean) / std for name, (mean, std) in zip(self.names, scale, strict=True)]
        return replace(p, info={**p.info, "ratings": told})

    def look(self, context: Context) -> None:
        """How much of the variance of held-out ratings is explained, by reward."""
        rows = list(self.env(context).test)
        if not rows:
            return
        policy = context.role("reward_model")
        found_PK = predicted(policy, [policy.written(p, str(demonstration(p))) for p in rows])
        told_PK = torch.tensor([p.info["ratings"] for p in rows])
        left_K = ((found_PK - told_PK) ** 2).mean(0) / told_PK.var(0, correction=0).clamp_min(1e-6)
        context.notes["explained"] = {name: 1 - float(x) for name, x in zip(self.names, left_K, strict=True)}


@torch.no_grad()
def predicted(policy: Any, rollouts: Sequence[Rollout]) -> Tensor:
    """scores_BK of answers."""
    policy.eval()
    pieces = [rollouts[i : i + AT_ONCE] for i in range(0, len(rollouts), AT_ONCE)]
    return torch.cat([policy.forward(some, ("scores_BK",))["scores_BK"].float().cpu() for some in pieces])
