"""A source of rollouts elsewhere for a run that several processes train: the first of them has the workers, and tells the others.

Workers get whole weights. Where these are in rows, all processes gather them at the same moments, before the first one may publish them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from posttrain.core.protocols import Policy
from posttrain.core.ranks import by_lead, ranks
from posttrain.core.types import Group


class LedSource:
    """`Source` in every process; only the first one's samples."""

    def __init__(self, make: Callable[..., Any], policies: Mapping[str, Policy], *parts: Any) -> None:
        self.policies = policies
        self.inner = make(policies, *parts) if ranks().lead else None
        self._saved: dict[str, Any] | None = None  # state that was loaded, to be used when weights are whole

    def next(self, step: int) -> tuple[list[Group], Any]:
        self._whole()
        if self._saved is not None and self.inner is not None:
            self.inner.load_state_dict(self._saved)
        self._saved = None
        found: tuple[list[Group], Any] = by_lead(lambda: self.inner.next(step))  # type: ignore[union-attr]
        return found

    def publish(self, version: int) -> None:
        self._whole()
        by_lead(lambda: self.inner.publish(version))  # type: ignore[union-attr]

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
