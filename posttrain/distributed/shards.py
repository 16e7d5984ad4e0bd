"""A shard: a fixed slice of a step's prompts, answered in one call of the rollout part by weights of one version.

Which prompts make a shard depends on the settings alone, never on how many workers there are or which of them is free; draws belong to
the identities of prompts. So a shard is a function of (seed, step, prompts, version), wherever it is made and however often.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import Part
from posttrain.core.turn import Turn
from posttrain.core.types import Group, Prompt

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """What is to be made: these prompts of a step, by this version of the weights."""

    step: int
    round: int  # how many times the step was asked before: methods that refill ask again
    index: int
    version: int
    prompts: tuple[Prompt, ...]

    @property
    def order(self) -> tuple[int, int, int]:
        """Earlier steps are needed earlier."""
        return self.step, self.round, self.index

    def __str__(self) -> str:
        first = ", ".join(p.id for p in self.prompts[:3])
        more = f" and {len(self.prompts) - 3} more" if len(self.prompts) > 3 else ""
        return f"shard {self.index} of step {self.step} (prompts {first}{more})"


class Sampler(Protocol):
    """Who makes shards: this process, others, or Ray's."""

    def ready(self, version: int, live: bool) -> str:
        """The weights of this version, as they are now (live) or as they were published, can be sampled from until they are
        forgotten. Their hash, where they have one; a UserError where they are gone."""

    def submit(self, shard: Shard) -> Future[list[Group]]:
        """Make it as soon as somebody is free. It is in the ledger before the result is there."""

    def forget(self, keep: set[int]) -> None:
        """No other versions than these will be asked for."""

    def close(self) -> None: ...


def cut(prompts: Sequence[Prompt], shards: int) -> list[tuple[Prompt, ...]]:
    """The prompts in so many slices, sizes equal to within one; fewer where there are fewer prompts."""
    n = max(1, min(shards, len(prompts)))
    ends = [len(prompts) * i // n for i in range(n + 1)]
    return [tuple(prompts[a:b]) for a, b in zip(ends, ends[1:], strict=False)]


def done(value: T) -> Future[T]:
    """A result that is there already."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def make(rollout: Part, ask: RolloutRequest, version: int) -> list[Group]:
    """Answer the prompts; every action is of this version, whatever step asks for it."""
    groups: list[Group] = rollout(ask.but(version=version))
    if version != ask.step:
        for r in (r for g in groups for r in g.rollouts):
            r.turns = [_stamped(t, version) for t in r.turns]
    return groups


def _stamped(turn: Turn, version: int) -> Turn:
    number = Turn.of(turn.observation, turn.actions, turn.logp_T, version=version).version_T
    return replace(turn, version_T=number)


def record(shard: Shard, groups: list[Group], digest: str = "") -> dict[str, Any]:
    """As the ledger keeps it. digest: of the weights, where they have one."""
    return {
        "version": shard.version, "weights": digest, "prompts": [p.id for p in shard.prompts], "groups": groups,
    }  # fmt: skip


def matches(found: Any, prompts: Sequence[Prompt], version: int, digest: str) -> bool:
    """Whether a record is of these prompts and weights; records without a hash of their weights are told by the number."""
    if not isinstance(found, dict) or found.get("version") != version:
        return False
    same = not digest or not found.get("weights") or found["weights"] == digest
    return same and found.get("prompts") == [p.id for p in prompts]
