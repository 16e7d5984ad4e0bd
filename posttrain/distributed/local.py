"""Shards made in this process, from the policies that are trained: a lag needs no other process to be exact."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import Part
from posttrain.core.types import Group
from posttrain.distributed.ledger import Ledger
from posttrain.distributed.shards import Shard, done, make, record
from posttrain.runs.wire import Unsendable, pack


class LocalSampler:
    """Makes a shard as soon as it is asked for: with a lag that is right after the update that its weights come from."""

    def __init__(
        self, rollout: Part, ask: RolloutRequest, ledger: Ledger, begin: Callable[[Shard], None] | None = None
    ) -> None:
        self.rollout, self.ask, self.ledger = rollout, ask, ledger
        self.begin = begin  # who else begins the shard: the other processes that train

    def ready(self, version: int, live: bool) -> str:
        if not live:
            raise UserError(
                f"answers by version {version} of the weights are missing in {self.ledger.folder}, and these weights are gone; put "
                "the folder back, or use another --name, or --fresh to start over"
            )
        return ""

    def submit(self, shard: Shard) -> Future[list[Group]]:
        if self.begin is not None:
            self.begin(shard)
        groups = make(self.rollout, self.ask.but(prompts=shard.prompts, step=shard.step), shard.version)
        try:
            data = pack(record(shard, groups))
        except Unsendable as error:
            raise UserError(
                f"the answers hold {error}, which the ledger of a run in shards cannot keep; leave --shards and --lag away"
            ) from None
        self.ledger.write(shard.step, shard.round, shard.index, data)
        return done(groups)

    def forget(self, keep: set[int]) -> None:
        pass

    def close(self) -> None:
        pass
