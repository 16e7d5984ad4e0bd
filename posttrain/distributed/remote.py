"""Shards made by workers: weights go out by version, shards by their order, and what comes back is in the ledger before it is used."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.types import Group
from posttrain.distributed.direct import Direct
from posttrain.distributed.ledger import Ledger
from posttrain.distributed.pool import Pool, then
from posttrain.distributed.shards import Shard
from posttrain.distributed.versions import Version, Versions
from posttrain.runs.wire import Unsendable, pack, unpack


class RemoteSampler:
    """Sends shards to a pool of workers, of this machine or of Ray."""

    def __init__(
        self, pool: Pool, policy: Policy, versions: Versions, ledger: Ledger, direct: Direct | None = None
    ) -> None:
        self.pool, self.policy, self.versions, self.ledger, self.direct = pool, policy, versions, ledger, direct
        self.live = -1  # the version that was published last

    def ready(self, version: int, live: bool) -> str:
        """Live weights are written once however many steps they make."""
        if live and version != self.live:
            written = self.versions.publish(version, self.policy)
            if self.direct is not None:
                self.direct.hold(written, self.policy)
            self.live = version
        return self.versions.find(version).digest

    def submit(self, shard: Shard) -> Future[list[Group]]:
        message = asked(shard, self.versions.find(shard.version))
        return then(self.pool.submit(shard.order, message, str(shard)), lambda reply: self._kept(shard, reply))

    def submit_newest(self, shard: Shard, begun: Callable[[int], None]) -> Future[list[Group]]:
        """The same with the newest weights that there are when somebody is free; `begun` is told which."""

        def message() -> bytes:
            weights = self.versions.find(self.live)
            begun(weights.number)
            return asked(shard, weights)

        return then(self.pool.submit(shard.order, message, str(shard)), lambda reply: self._kept(shard, reply))

    def _kept(self, shard: Shard, reply: bytes) -> list[Group]:
        self.ledger.write(shard.step, shard.round, shard.index, reply)
        groups: list[Group] = unpack(reply)["groups"]
        return groups

    def forget(self, keep: set[int]) -> None:
        self.versions.forget(keep)
        if self.direct is not None:
            self.direct.forget(keep)

    def close(self) -> None:
        self.pool.close()


def asked(shard: Shard, weights: Version) -> bytes:
    """A shard and the weights that are to make it, as a worker is told."""
    told = {"do": "make", "step": shard.step, "version": weights.number, "prompts": list(shard.prompts)}
    try:
        return pack(told | {"path": weights.path, "weights": weights.digest})
    except Unsendable as error:
        raise UserError(
            f"the prompts hold {error}, which cannot be sent to another process; use --sampler local"
        ) from None
