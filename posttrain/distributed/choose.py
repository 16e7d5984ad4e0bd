"""From settings to who samples and who scores: the source of a run, and what cannot work, in a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.ranks import ranks
from posttrain.core.registry import Part, find
from posttrain.distributed import ledger as ledgers
from posttrain.distributed import versions as published
from posttrain.distributed.led import begun_by_all
from posttrain.distributed.ledger import Ledger
from posttrain.distributed.local import LocalSampler
from posttrain.distributed.opportunistic import OpportunisticSource
from posttrain.distributed.pool import Handle, Pool
from posttrain.distributed.process import Process
from posttrain.distributed.remote import RemoteSampler
from posttrain.distributed.rewards import RewardPool
from posttrain.distributed.setup import PACKAGE, setup
from posttrain.distributed.shards import Sampler
from posttrain.distributed.sources import Schedule, ShardedSource
from posttrain.distributed.versions import Versions
from posttrain.environments.conversions import KINDS
from posttrain.policies.vllm import choose as engines
from posttrain.rewards.runtime.score import RewardSum, say_once

_SHARDS = 8  # pieces of a step where workers sample
_CORRECTED = "--loss tis, --loss decoupled_ppo or --loss ppo"


def settled(config: Config) -> Config:
    """The settings with the number of shards that they mean: it decides bits, so it is written down with the run."""
    if config.shards or config.sampler == "local":
        return config
    return dataclasses.replace(config, shards=_SHARDS)


def in_shards(config: Config) -> bool:
    """Whether a run is more than one call of the rollout part per step in this process."""
    return config.sampler != "local" or config.lag > 0 or (config.shards > 1 and ranks().shards == 1)


def refuse(config: Config, method: Method, given: Mapping[str, Any]) -> None:
    """One sentence for settings that cannot work, before anything is loaded."""
    _options(config)
    _divided(config, method)
    _engine(config, method, given)
    if config.reward_workers and ("scorer" in given or "env" in given):
        what = "reward" if "scorer" in given else "task"
        raise UserError(
            f"reward workers build the reward from settings, and this run was given a {what} as an object of Python; name it "
            f"({what}='FILE.py:NAME'), or leave reward_workers away"
        )
    if not in_shards(config):
        return
    if kind := method.rollout.card.data:
        raise UserError(
            f"{method.name} learns from {kind} that are there already, so nobody samples; leave --sampler and --lag away"
        )
    if "source" in given:
        raise UserError(
            "a source of its own was given for this run, which says where rollouts come from; leave --sampler and --lag away"
        )
    if config.lag or config.max_staleness:
        _off_policy(config, method)
    if config.sampler != "local":
        _elsewhere(config, method, given)


def _options(config: Config) -> None:
    """Options that mean nothing without another."""
    if config.sampler == "local" and config.rollout_workers > 1:
        raise UserError(f"--rollout-workers {config.rollout_workers} needs --sampler process, or ray")
    if config.max_staleness and config.sampler == "local":
        raise UserError("--max-staleness is of workers that sample while this process trains; add --sampler process")
    if config.max_staleness and config.lag:
        raise UserError("--lag is a fixed age of the weights, and --max-staleness the most; use one of the two")
    if config.ray_address and config.sampler != "ray":
        raise UserError(f"--ray-address {config.ray_address} needs --sampler ray")


_LARGE = (
    "dist_BTV",
    "hidden_BTD",
    "mixed_logp_BT",
    "scores_BK",
    "topk_id_BTK",
)  # streams that rows cannot be divided with


def _divided(config: Config, method: Method) -> None:
    """Whether rows can be divided among processes."""
    size, here = config.context_parallel, ranks()
    if size == 1:
        return
    if config.exact_sums:
        why = "exact sums are of whole rows; leave one of both away"
    elif not hasattr(here, "gather_saving"):
        why = f"there is one; add --gpus {size}"
    elif here.world % size:
        why = f"{size} do not divide the {here.world} that there are; use a number that does"
    elif large := sorted(name for name in method.reads if name.removeprefix("ref_") in _LARGE):
        why = (
            f"{method.name} reads {large[0]}, more than a number for each action, which is not gathered; leave it away"
        )
    else:
        return
    raise UserError(f"--context-parallel {size} divides rows among processes, and {why}")


def _engine(config: Config, method: Method, given: Mapping[str, Any]) -> None:
    if not config.engine:
        return
    engines.check(config)
    if method.scores or method.rollout.card.data in KINDS:
        raise UserError(
            f"{method.name} samples no answers, so there is nothing for --engine {config.engine} to do; leave it away"
        )
    if given.get("others"):
        raise UserError(
            f"several policies play here, and --engine {config.engine} has the weights of one; leave it away"
        )


def _off_policy(config: Config, method: Method) -> None:
    told = f"--lag {config.lag}" if config.lag else f"--max-staleness {config.max_staleness}"
    for goal in method.objectives:
        if goal.loss.card.stage == "policy_loss" and "old_logp_BT" not in goal.loss.card.reads:
            raise UserError(
                f"with {told} answers come from older weights, and {goal.loss.name} has no ratio to the weights that sampled them; use a "
                f"loss that corrects for it ({_CORRECTED}), or leave it away"
            )
    if method.rounds > 1:
        raise UserError(
            f"{method.name} asks more prompts when it has seen the answers of a step, and with {told} the weights that made them are "
            "gone by then; add --rounds 1, or leave it away"
        )


def _elsewhere(config: Config, method: Method, given: Mapping[str, Any]) -> None:
    """Workers build the policy, the task and the rollout from settings."""
    if "policy" in given:
        raise UserError(
            "workers load the model by its name, and this run was given one as an object of Python; use --sampler local"
        )
    if given.get("others"):
        raise UserError(
            f"several policies play here ({', '.join(given['others'])}), and workers have one; use --sampler local"
        )
    part = method.rollout
    if part.fn.__module__ == "__main__":
        raise UserError(
            f"workers would have to run your script to find the rollout {part.name}; put it into a file of its own and import that"
        )
    if find(part.name, "rollout").fn is not part.fn:
        raise UserError(
            f"workers find the rollout {part.name} by its name, and this one is another; use --sampler local"
        )
    if "tools" in given:
        raise UserError(
            "workers build the tools from settings, and these were given as functions of Python; name their file (tools='FILE.py'), or use "
            "--sampler local"
        )
    if "env" in given and (given["env"].opens or part.name != "sample"):
        raise UserError(
            "workers build the task from settings, and this run was given one as an object of Python; name it (task='FILE.py:NAME'), "
            "or use --sampler local"
        )


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
            pool = Pool(self.handles(told, useful(c)), c.rollout_timeout)
            self.open.append(pool)
            first = next(iter(policies.values()))
            sampler = RemoteSampler(pool, first, Versions(self.folder / published.FOLDER), ledger)
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
