"""A source of rollouts in shards for a run that several processes train: the first of them has it, and tells the others.

Workers get whole weights. Where these are in rows, all processes gather them at the same moments, before the first one may publish them.
Where no worker samples the processes do it themselves: a shard that the first one begins is begun by all, each samples its pieces, and the
first one keeps the ledger and scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.ranks import ranks
from posttrain.core.types import Group
from posttrain.distributed.shards import Shard, make

T = TypeVar("T")
_MAKE, _DONE, _WRONG = "make", "done", "wrong"


def begun_by_all(shard: Shard) -> None:
    """The first process begins a shard: the others, which wait for it, begin it too."""
    ranks().from_lead((_MAKE, shard))


class LedSource:
    """`Source` in every process; only the first one's decides."""

    def __init__(self, source: Callable[..., Any], policies: Mapping[str, Policy], *parts: Any) -> None:
        self.policies = policies
        env, self.rollout, _, _, how = parts
        self.ask = RolloutRequest(policies, (), how[0], how[2], env=env)
        self.inner = source(policies, *parts) if ranks().lead else None
        self._saved: dict[str, Any] | None = None  # state that was loaded, to be used when weights are whole

    def next(self, step: int) -> tuple[list[Group], Any]:
        self._whole()
        return self._led(lambda: self._restored().next(step))  # type: ignore[no-any-return]

    def publish(self, version: int) -> None:
        self._whole()
        self._led(lambda: self._restored().publish(version))

    def _led(self, work: Callable[[], T]) -> T:
        """The first process works; the others make the shards that it begins meanwhile, and get its result. A mistake is one of all."""
        here = ranks()
        if here.lead:
            try:
                found = work()
            except UserError as mistake:
                here.from_lead((_WRONG, str(mistake)))
                raise
            here.from_lead((_DONE, found))
            return found
        while True:
            kind, told = here.from_lead(None)
            if kind == _WRONG:
                raise UserError(told)
            if kind == _DONE:
                return told  # type: ignore[no-any-return]
            make(self.rollout, self.ask.but(prompts=told.prompts, step=told.step), told.version)

    def _restored(self) -> Any:
        saved, self._saved = self._saved, None
        if saved is not None and self.inner is not None:
            self.inner.load_state_dict(saved)
        return self.inner

    def _whole(self) -> None:
        for policy in self.policies.values():
            _ = getattr(policy, "acting", None)  # gathered where weights have moved

    def on_checkpoint(self, loop: Any, step: int) -> None:
        if self.inner is not None and hasattr(self.inner, "on_checkpoint"):
            self.inner.on_checkpoint(loop, step)

    def state_dict(self) -> dict[str, Any]:
        if self._saved is not None:
            return self._saved
        found: dict[str, Any] = self.inner.state_dict() if self.inner is not None else {}
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._saved = state


def led(source: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """The same source for all processes of this run."""
    if source is None or not hasattr(ranks(), "gather_saving"):
        return source
    return lambda *parts: LedSource(source, *parts)
