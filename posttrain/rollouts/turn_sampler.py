"""Who samples the turns of episodes: the engine, where contexts are kept between turns and each joins as it is ready; else all that were
asked for in one call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn

Ended = list[tuple[Any, Turn]]


class TurnSampler(Protocol):
    """Turns of many conversations, each known by a name."""

    @property
    def busy(self) -> bool: ...
    def ask(self, who: Hashable, turns: Sequence[Turn], key: int) -> None:
        """Sample the last of these turns; the others are the conversation so far."""

    def step(self) -> Ended:
        """Sample for a while; the turns that have ended."""

    def branch(self, who: Hashable, other: Hashable) -> None:
        """Another conversation begins where this one stands."""

    def end(self, who: Hashable) -> None:
        """A conversation is over."""

    def close(self) -> None: ...


class Together:
    """Samples all that was asked for in one call of the policy."""

    def __init__(self, policy: Policy, how: Sampling, version: int) -> None:
        self.policy, self.how, self.version = policy, how, version
        self.asked: list[tuple[Hashable, Sequence[Turn], int]] = []

    @property
    def busy(self) -> bool:
        return bool(self.asked)

    def ask(self, who: Hashable, turns: Sequence[Turn], key: int) -> None:
        self.asked.append((who, turns, key))

    def step(self) -> Ended:
        asked, self.asked = self.asked, []
        made = self.policy.act([turns for _, turns, _ in asked], [[key] for *_, key in asked], self.how, self.version)
        return [(who, turn) for (who, *_), (turn,) in zip(asked, made, strict=True)]

    def branch(self, who: Hashable, other: Hashable) -> None: ...
    def end(self, who: Hashable) -> None: ...
    def close(self) -> None: ...


class Samplers:
    """Those of all policies: each by the engine where it can, and what the engine cannot read (pictures) together."""

    def __init__(self, ask: RolloutRequest, count: int) -> None:
        version = ask.step if ask.version is None else ask.version
        self.engines: dict[int, TurnSampler] = {}
        self.plain: dict[int, Together] = {}
        for policy in ask.policies.values():
            if id(policy) in self.plain:
                continue
            self.plain[id(policy)] = Together(policy, ask.sampling, version)
            made = getattr(policy, "turns", None)
            found = made(ask.sampling, version, count) if callable(made) else None
            if found is not None:
                self.engines[id(policy)] = found

    @property
    def every(self) -> list[TurnSampler]:
        return [*self.engines.values(), *self.plain.values()]

    @property
    def busy(self) -> bool:
        return any(sampler.busy for sampler in self.every)

    def ask(self, policy: Any, who: Hashable, turns: Sequence[Turn], key: int) -> None:
        pictures = any(t.observation.streams for t in turns)
        engine = None if pictures else self.engines.get(id(policy))
        (engine or self.plain[id(policy)]).ask(who, turns, key)

    def step(self) -> Ended:
        return [ended for sampler in self.every if sampler.busy for ended in sampler.step()]

    def end(self, names: Sequence[Hashable]) -> None:
        for sampler in self.engines.values():
            for who in names:
                sampler.end(who)

    def close(self) -> None:
        for sampler in self.every:
            sampler.close()
