"""From settings to who samples and who scores: the source of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.ranks import ranks
from posttrain.core.registry import Part, find
from posttrain.distributed import ledger as ledgers
from posttrain.distributed import versions as published
from posttrain.distributed.direct import FILES, Direct, handed
from posttrain.distributed.led import begun_by_all
from posttrain.distributed.ledger import Ledger
from posttrain.distributed.local import LocalSampler
from posttrain.distributed.opportunistic import OpportunisticSource
from posttrain.distributed.pool import Handle, Pool
from posttrain.distributed.process import Process
from posttrain.distributed.refuse import in_shards
from posttrain.distributed.remote import RemoteSampler
from posttrain.distributed.rewards import RewardPool
from posttrain.distributed.setup import PACKAGE, setup
from posttrain.distributed.shards import Sampler
from posttrain.distributed.sources import Schedule, ShardedSource
from posttrain.distributed.versions import Versions
from posttrain.rewards.runtime.score import RewardSum, say_once

_SHARDS = 8  # pieces of a step where workers sample


def settled(config: Config) -> Config:
    """The settings with the number of shards that they mean: it decides bits, so it is written down with the run."""
    if config.shards or config.sampler == "local":
        return config
    return dataclasses.replace(config, shards=_SHARDS)


@dataclass
class Elsewhere:
    """What a run needs to sample and score in other processes: it is opened with the run and closed with it."""

    config: Config  # as workers are to read it: with the folder of the model where that is a run
    folder: Path
    given: Mapping[str, Any] = field(default_factory=dict)
    use: Sequence[str] = ()
    open: list[Any] = field(default_factory=list)  # what must be closed at the end

    def source(self, *parts: Any) -> ShardedSource | OpportunisticSource:
        """Made as LocalSource is: policies, env, rollout, scorer, curriculum, how."""
        c, (policies, env, rollout, scorer, _, how) = self.config, parts
        ledger = Ledger(self.folder / ledgers.FOLDER)
        begin = None if c.lag else getattr(scorer, "begin", None)
        sampler: Sampler
        if c.sampler == "local":
            several = hasattr(ranks(), "gather_saving")
            ask = RolloutRequest(policies, (), how[0], how[2], env=env, finished=None if several else begin)
            sampler = LocalSampler(rollout, ask, ledger, begun_by_all if several else None)
        else:
            told = setup(c, rollout, env="env" not in self.given, use=self.files(rollout), folder=self.folder)
            handles = self.handles(told, useful(c))
            direct = self.direct()
            pool = Pool(handed(handles, direct), c.rollout_timeout)
            self.open.append(pool)
            first = next(iter(policies.values()))
            sampler = RemoteSampler(pool, first, Versions(self.folder / published.FOLDER), ledger, direct)
        if c.max_staleness:
            return self._opportunistic(parts, sampler)
        made = ShardedSource(*parts, schedule=Schedule(c.steps, c.shards or 1, c.lag), sampler=sampler, ledger=ledger)
        self.open.append(made)
        return made

    def _opportunistic(self, parts: tuple[Any, ...], sampler: Any) -> OpportunisticSource:
        c = self.config
        say_once(
            f"--max-staleness {c.max_staleness}: which weights make an answer depends on who is ready first, so this run cannot be "
            f"repeated to the bit; --lag {c.max_staleness} can"
        )
        made = OpportunisticSource(*parts, schedule=Schedule(c.steps, c.shards, c.max_staleness), sampler=sampler)
        self.open.append(made)
        return made

    def rewards(self, scorer: Any, rollout: Part) -> None:
        """Let the workers compute the rewards of single answers of this scorer."""
        c = self.config
        if not c.reward_workers:
            return
        if not isinstance(scorer, RewardSum) or not scorer.singles:
            raise UserError(
                f"--reward-workers {c.reward_workers}: this reward is asked about all answers of a step at once, so there is nothing to "
                "give out; leave it away, or write def f(prompt, text) -> float"
            )
        scorer.divides = False  # workers are asked, not the processes that train
        if not ranks().lead:
            return
        told = setup(c, find("sample", "rollout"), role="reward", use=self.files(rollout))
        pool = RewardPool(
            Pool(self.handles(told, c.reward_workers, sample=False), c.reward_timeout, deaths=1),
            c.reward_workers,
            c.reward_timeout,
        )
        scorer._elsewhere = pool.begin
        self.open.append(pool)

    def handles(self, told: bytes, workers: int, sample: bool = True) -> list[Handle]:
        if self.config.sampler == "ray":
            from posttrain.distributed.ray_pool import actors

            found: list[Handle] = actors(told, workers, self.config, sample)
            return found
        return [Process(told, i) for i in range(workers)]

    def direct(self) -> Direct | None:
        """Where weights go from memory to memory: who keeps them there."""
        c = self.config
        if c.weights_over == FILES:
            return None
        host = "127.0.0.1"
        if c.sampler == "ray":
            from posttrain.distributed.ray_pool import here

            host = here()
        made = Direct(c.weights_over, host)
        self.open.append(made)
        return made

    def files(self, rollout: Part) -> list[str]:
        """Files of the user's that register parts: those of --use, and the one of the rollout."""
        own = Path(rollout.card.file)
        mine = [str(own)] if own.is_absolute() and not own.is_relative_to(PACKAGE) else []
        return list(dict.fromkeys([*self.use, *mine]))

    def close(self) -> None:
        for thing in reversed(self.open):
            thing.close()
        self.open.clear()
        if self.config.sampler == "ray":
            from posttrain.distributed.ray_pool import disconnect

            disconnect()


def useful(config: Config) -> int:
    """How many rollout workers can have something to do: a step has so many shards, and so many steps are made at a time."""
    most = min(config.shards or _SHARDS, config.prompts) * (1 + max(config.lag, config.max_staleness))
    if config.rollout_workers > most:
        say_once(
            f"--rollout-workers {config.rollout_workers}: {most} are started, as many as there are shards at a time; more --shards give "
            "more of them something to do"
        )
    return min(config.rollout_workers, most)


@contextmanager
def closing(elsewhere: Elsewhere) -> Iterator[Callable[..., Any] | None]:
    """The source of the run, or None for the plain one; workers end with the block, whatever happens in it."""
    try:
        yield elsewhere.source if in_shards(elsewhere.config) else None
    finally:
        elsewhere.close()
