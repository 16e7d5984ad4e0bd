"""Rollouts in shards, made here or by workers, a fixed number of steps ahead of training.

With --lag S step k is made by version max(0, k - S) of the weights, exactly: never "at most so old". So a run with a lag is a function
of its seed too, and S = 0 is the synchronous run by the same code. What happens when, for S = 1:

    publish(k)   the curriculum sees step k - 1; the prompts of step k + 1 are chosen and go out with version k
    next(k)      waits for the shards of step k (version k - 1), which were made and scored while step k - 1 was trained on

A curriculum therefore sees the results up to step k - S - 1 when it chooses the prompts of step k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Curriculum, Environment, Policy, Scorer
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.distributed.ledger import SCORED, Ledger
from posttrain.distributed.shards import Sampler, Shard, cut, done, matches
from posttrain.rollouts.sources import LocalSource
from posttrain.runs.checkpoint import listing
from posttrain.runs.wire import Unsendable, pack, unpack

_PATIENCE = 5.0  # seconds that the end of a run waits for rewards that are being computed
Scored = tuple[list[Group], Any]  # groups with their rewards, the report of the scoring


@dataclass(frozen=True)
class Schedule:
    """How a run's steps are cut and how far ahead they are made."""

    steps: int
    shards: int = 1
    lag: int = 0


@dataclass
class Job:
    """The rollouts of one round of a step, on their way."""

    step: int
    round: int
    version: int
    prompts: list[Prompt]
    weights: str = ""  # their hash, where it is known
    shards: list[Future[list[Group]]] = field(default_factory=list)
    scored: Future[Scored] | None = None  # begun in another thread where there is a lag


class ShardedSource(LocalSource):
    """`Source` over a sampler that makes shards. Constructed as LocalSource is, with who samples and where finished work is kept."""

    def __init__(
        self, policies: Mapping[str, Policy], env: Environment, rollout: Part, scorer: Scorer, curriculum: Curriculum,
        how: tuple[Sampling, int, int], *, schedule: Schedule, sampler: Sampler, ledger: Ledger,
    ) -> None:  # fmt: skip
        super().__init__(policies, env, rollout, scorer, curriculum, how)
        self.schedule, self.sampler, self.ledger = schedule, sampler, ledger
        self._jobs: dict[int, Job] = {}  # by step: those that were asked and not taken yet
        self._rounds = 0  # of the present step
        self._known = 0  # of the live weights: their version
        self._scoring: Future[Scored] | None = None  # the last that was begun beside training
        self._closed = False

    def next(self, step: int) -> Scored:
        """Wait for the groups of a step. A step that is asked again gets the next prompts, made by the same weights."""
        again = step == self._step
        self._rounds = self._rounds + 1 if again else 0
        if again:
            job = self._ask(step, step, self._rounds)
        else:
            self._known = step
            last = min(step + self.schedule.lag, self.schedule.steps - 1)
            for later in (s for s in range(step, max(step, last) + 1) if s not in self._jobs):
                self._jobs[later] = self._ask(later, self._live(later))
            job = self._jobs.pop(step)
        groups, report = job.scored.result() if job.scored else self._gather(job)
        self._last, self._step = (self._last if again else []) + groups, step
        return groups, report

    def publish(self, version: int) -> None:
        """The weights changed: the curriculum sees the step, and the step that these weights make is begun."""
        super().publish(version)
        self._known, later = version, version + self.schedule.lag
        if self.schedule.lag and later < self.schedule.steps and later not in self._jobs:
            self._jobs[later] = self._ask(later, version)
        self.sampler.forget({version, *(job.version for job in self._jobs.values())})

    def _live(self, step: int) -> int:
        """The version that makes a step, which must be the weights there are: all earlier steps were asked for in their time."""
        version = max(0, step - self.schedule.lag)
        if version != self._known:
            raise UserError(
                f"this run was to end after step {self._known - 1}; with --lag {self.schedule.lag} step {step} would be made by the weights "
                f"after step {version - 1}, which are gone; begin a new run with its weights: --model runs/NAME and another --name"
            )
        return version

    def _ask(self, step: int, version: int, round: int = 0) -> Job:
        """Choose the prompts and send them out."""
        return self._send(Job(step, round, version, self.propose(step)))

    def _send(self, job: Job) -> Job:
        """Send out what the ledger does not have; where there is a lag, scoring begins as soon as all shards are there."""
        live = job.version == self._known
        job.weights = self.sampler.ready(job.version, live) if live else ""
        found = self.ledger.read(job.step, job.round, SCORED)
        if matches(found, job.prompts, job.version, job.weights):
            job.scored = done((found["groups"], found["report"]))
            return job
        for index, prompts in enumerate(cut(job.prompts, self.schedule.shards)):
            found = self.ledger.read(job.step, job.round, index)
            if matches(found, prompts, job.version, job.weights):
                job.shards.append(done(found["groups"]))
                continue
            if not live:  # asked before a restart: by weights that were published then
                self.sampler.ready(job.version, live)
            job.shards.append(self.sampler.submit(Shard(job.step, job.round, index, job.version, prompts)))
        if self.schedule.lag:
            job.scored = self._scoring = self._beside(job, self._scoring)
        return job

    def _beside(self, job: Job, before: Future[Scored] | None) -> Future[Scored]:
        """Score in another thread while this one trains; steps in their order, one at a time."""
        future: Future[Scored] = Future()

        def work() -> None:
            if before is not None:
                wait([before])
            try:
                if self._closed:
                    raise UserError(f"step {job.step} was not scored: the run is over")
                future.set_result(self._gather(job))
            except BaseException as error:  # comes out where the step is asked for
                future.set_exception(error)

        Thread(target=work, name=f"step {job.step}", daemon=True).start()
        return future

    def _gather(self, job: Job) -> Scored:
        """All shards in order, scored at once: a reward that takes all answers of a step gets them all."""
        groups = [g for future in job.shards for g in future.result()]
        report = self.scorer.score(groups)
        value = {"version": job.version, "weights": job.weights, "prompts": [p.id for p in job.prompts]}
        with suppress(Unsendable):  # a report of the user's own kind: after a kill the shards are scored again
            self.ledger.scored(job.step, job.round, value | {"groups": groups, "report": report}, len(job.shards))
        return groups, report

    def on_checkpoint(self, loop: Any, step: int) -> None:
        """Steps that every kept checkpoint has passed are not asked for again."""
        self.ledger.forget(passed(loop))

    # ---- what a checkpoint holds

    def state_dict(self) -> dict[str, Any]:
        """The prompts that were chosen for later steps: a curriculum is not asked twice for them."""
        asked = {str(step): as_tensor(job.prompts) for step, job in self._jobs.items()}
        return super().state_dict() | ({"asked": asked} if asked else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        asked = {int(step): unpack(x.numpy().tobytes()) for step, x in state.get("asked", {}).items()}
        self._known = min(asked, default=0)  # the weights that were loaded with it
        for step, prompts in sorted(asked.items()):
            self._jobs[step] = self._send(Job(step, 0, max(0, step - self.schedule.lag), prompts))

    def close(self) -> None:
        """End what is under way; whatever is finished is in the ledger."""
        self._closed = True
        self.sampler.close()
        if self._scoring is not None:
            wait([self._scoring], _PATIENCE)


def passed(loop: Any) -> int:
    """The last step that no restart asks for again: every checkpoint that is kept includes it."""
    return min((at for at, _ in listing(loop.run.checkpoints, loop.phase)), default=-1)


def as_tensor(prompts: Sequence[Prompt]) -> Tensor:
    """Prompts for a checkpoint."""
    try:
        return torch.frombuffer(bytearray(pack(list(prompts))), dtype=torch.uint8)
    except Unsendable as error:
        raise UserError(
            f"the prompts hold {error}, which a checkpoint cannot keep, and with a lag it must; leave --lag away"
        ) from None
