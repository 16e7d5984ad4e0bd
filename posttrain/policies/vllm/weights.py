"""Weights on their way to vLLM: whether they have moved since, and how they are called there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.models.four_bit import FourBit
from posttrain.models.lora import adapters_of


class Moved:
    """Whether a policy's weights have changed since they were sent: by the counters that torch keeps of writes to each tensor."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.sent: list[tuple[int, int]] | None = None

    def now(self) -> list[tuple[int, int]]:
        return [(p.data_ptr(), p._version) for p in self.policy.model.parameters()]

    def send(self, how: Callable[[], None]) -> bool:
        """Send them unless they are there; whether they were sent."""
        now = self.now()
        if now == self.sent:
            return False
        self.sent = None  # half sent is not sent
        how()
        self.sent = now
        return True

    def forget(self) -> None:
        """They are gone from where they were: a server that was started again."""
        self.sent = None


def has_adapters(policy: Any) -> bool:
    """Whether only adapters are trained, on a base that vLLM can have as it is: one in 4 bits it cannot."""
    layers = adapters_of(policy.model).values()
    return bool(layers) and not any(isinstance(m, FourBit) for m in policy.model.modules())


class Folders:
    """One folder for each version that is sent through the disk; the one before goes when the next is there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self.last = folder.absolute(), 0, Path()
        shutil.rmtree(self.folder, ignore_errors=True)  # of a run that was killed

    def next(self) -> Path:
        self.count += 1
        return self.folder / f"weights-{self.count}"

    def done(self, path: Path) -> None:
        if self.last.name:
            shutil.rmtree(self.last, ignore_errors=True)
        self.last = path

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def tensors(policy: Any) -> dict[str, Tensor]:
    """The weights by the names of a Hugging Face folder, adapters added to their matrices."""
    from posttrain.policies.load import named_weights

    if policy.whole is not None:
        raise UserError("weights that are in rows over several processes are sent by workers: add --sampler process")
    return named_weights(policy)
