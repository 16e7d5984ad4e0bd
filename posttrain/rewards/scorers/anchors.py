"""Anchors: answers that stand still, one or a few for each prompt, for others to be compared with."""

from __future__ import annotations

from typing import Any

from posttrain.core.sampling import Sampling
from posttrain.core.types import Group


class Anchors:
    """For `WinRate(judge, others=Anchors(...))`: a prompt's own anchor (`info["anchor"]`), else m answers of a policy, kept.

    They are drawn by the prompt's identity, so that a resumed run finds the same ones.
    """

    def __init__(self, policy: Any, how: Sampling, m: int = 1, seed: int = 0) -> None:
        self.policy, self.how, self.m, self.seed = policy, how, m, seed
        self.known: dict[str, list[str]] = {}

    def __call__(self, groups: list[Group]) -> list[list[str]]:
        for p in (g.prompt for g in groups):
            if isinstance(p.info.get("anchor"), str):
                self.known.setdefault(p.id, [p.info["anchor"]])
        fresh = list({g.prompt.id: g.prompt for g in groups if g.prompt.id not in self.known}.values())
        made = self.policy.sample(fresh, self.m, self.how, self.seed, -1) if fresh else []
        self.known |= {p.id: [r.text for r in rollouts] for p, rollouts in zip(fresh, made, strict=True)}
        return [self.known[g.prompt.id] for g in groups]
