"""A discrete-event simulation of one run: trainer, rollout workers, rewards, weight publishing, checkpoints, failures.

Events: a shard is made, a shard is scored, a step is trained (its cells and collectives), weights are published, a checkpoint is
written, a card fails, a worker is back. What each lasts is given (`Stages`), so this file knows no model and no hardware.

Step k is made by weights of version max(0, k - lag), exactly; with `staleness` instead, the first shards to be ready are the
next step, whatever they were asked for, and a shard may be begun at most `staleness` steps ahead of training.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.planning.outcome import Outcome


@dataclass(frozen=True)
class Stages:
    """Seconds: of each shard by step (steps repeat when there are more than given), of training a step, of everything else."""

    make: Sequence[Sequence[float]]
    train: Sequence[float]
    score: float = 0.0  # of all reward workers together, per shard
    grade: float = 0.0  # of one answer: a shard is not scored sooner than that
    publish: float = 0.0  # the trainer sends weights
    load: float = 0.0  # a worker takes a new version
    save: float = 0.0  # the trainer waits for a checkpoint
    host: float = 0.0  # per step, before training


@dataclass(frozen=True)
class Crew:
    """Who works, and by which rules."""

    trainers: int  # cards
    workers: int  # engines that make shards
    per_worker: int = 1  # cards of each
    colocated: bool = False  # worker r runs on trainer r's card, which does one thing at a time
    lag: int = 0
    staleness: int | None = None
    steps: int = 50
    save_every: int = 10
    mtbf: float = math.inf  # seconds between failures of one card
    restart: float = 300.0  # seconds until what failed is back

    @property
    def cards(self) -> int:
        return self.trainers if self.colocated else self.trainers + self.workers * self.per_worker


class Simulation:
    """The state at one moment, and what each event changes. `run` gives the outcome."""

    def __init__(self, crew: Crew, stages: Stages, seed: int = 0) -> None:
        self.crew, self.stages, self.rng = crew, stages, random.Random(seed)
        self.shards = len(stages.make[0])
        self.now = 0.0
        self.queue: list[tuple[float, int, str, int, int]] = []  # (when, order, event, who, which)
        self.order = 0
        self.version = self.step = 0  # weights that are published; the step that is trained next
        self.idle = list(range(crew.workers))
        self.loaded = [0] * crew.workers
        self.job: list[int | None] = [None] * crew.workers
        self.began, self.ends = [0.0] * crew.workers, [0.0] * crew.workers
        self.up_next = 0
        self.own = list(range(crew.workers))  # colocated: the next shard of each rank
        self.back: deque[int] = deque()  # shards of workers that failed
        self.ready: dict[int, deque[int]] = {}  # step -> versions of its scored shards; with staleness all are step 0's
        self.scoring_until = 0.0
        self.busy, self.busy_until, self.busy_what = False, 0.0, ""
        self.since_save = 0.0  # seconds of training that a failure would lose
        self.seen = Outcome(crew.cards, crew.trainers, crew.workers, crew.colocated)

    # ---- time

    def at(self, when: float, event: str, who: int = 0, which: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.queue, (when, self.order, event, who, which))

    def run(self) -> Outcome:
        self._next_failure()
        self._hand_out()
        while self.step < self.crew.steps:
            self.now, _, event, who, which = heapq.heappop(self.queue)
            getattr(self, f"_{event}")(who, which)
        self.seen.seconds = self.now
        return self.seen

    # ---- rollout workers

    def _open(self, shard: int) -> bool:
        """Whether a shard may be begun: the weights that its step is made by are out."""
        step = shard // self.shards
        if step >= self.crew.steps:
            return False
        if self.crew.staleness is not None:
            return step <= self.step + self.crew.staleness
        return self.version >= step - self.crew.lag

    def _take(self, worker: int) -> int | None:
        """The next shard for a worker: its own by number where trainers sample, else the first that nobody has."""
        if self.crew.colocated:
            shard = self.own[worker]
            if worker >= self.shards or not self._open(shard):
                return None
            place = shard % self.shards + self.crew.workers
            left = shard // self.shards * self.shards
            self.own[worker] = left + place if place < self.shards else left + self.shards + worker
            return shard
        if self.back:
            return self.back.popleft()
        if not self._open(self.up_next):
            return None
        self.up_next += 1
        return self.up_next - 1

    def _hand_out(self) -> None:
        """Shards to all who wait, as far as there are any."""
        waiting, self.idle = self.idle, []
        for place, worker in enumerate(waiting):
            shard = self._take(worker)
            if shard is not None:
                self._begin(worker, shard)
            elif self.crew.colocated:
                self.idle.append(worker)
            else:  # what is not there for one is not there for the others
                self.idle = waiting[place:]
                return

    def _free(self, worker: int) -> None:
        """A worker asks for its next shard."""
        shard = self._take(worker)
        if shard is None:
            self.idle.append(worker)
        else:
            self._begin(worker, shard)

    def _begin(self, worker: int, shard: int) -> None:
        step, place = divmod(shard, self.shards)
        version = self.version if self.crew.staleness is not None else max(0, step - self.crew.lag)
        load = self.stages.load if self.loaded[worker] != version else 0.0
        self.loaded[worker] = version
        make = self.stages.make[step % len(self.stages.make)][place]
        self.job[worker], self.began[worker], self.ends[worker] = shard, self.now, self.now + load + make
        self.seen.loading += load
        self.at(self.ends[worker], "made", worker, shard)

    def _made(self, worker: int, shard: int) -> None:
        if self.job[worker] != shard:
            return  # it failed meanwhile
        if self.now < self.ends[worker]:
            self.at(self.ends[worker], "made", worker, shard)  # training came between
            return
        self.seen.making += self.stages.make[shard // self.shards % len(self.stages.make)][shard % self.shards]
        self.job[worker] = None
        self.scoring_until = max(self.scoring_until, self.now) + self.stages.score
        self.at(max(self.scoring_until, self.now + self.stages.grade), "scored", self.loaded[worker], shard)
        self._free(worker)
        if self.crew.colocated:
            self._train()

    def _scored(self, version: int, shard: int) -> None:
        step = 0 if self.crew.staleness is not None else shard // self.shards
        self.ready.setdefault(step, deque()).append(version)
        self._train()

    # ---- trainer

    def _train(self) -> None:
        """Begin the next step where all of it is there. Processes that sample and train in turn finish what they sample first: a lag
        hides rewards there, and nothing else."""
        pot = 0 if self.crew.staleness is not None else self.step
        ready = self.ready.get(pot, ())
        if self.busy or self.step >= self.crew.steps or len(ready) < self.shards:
            return
        if self.crew.colocated and any(job is not None for job in self.job):
            return
        self.seen.stale.update(self.step - self.ready[pot].popleft() for _ in range(self.shards))
        seconds = self.stages.host + self.stages.train[self.step % len(self.stages.train)]
        self.seen.training += seconds
        self.since_save += seconds
        self._occupy("trained", seconds)

    def _occupy(self, event: str, seconds: float) -> None:
        """The trainer is busy until the event."""
        self.busy, self.busy_until, self.busy_what = True, self.now + seconds, event
        self.at(self.busy_until, event)

    def _early(self, event: str) -> bool:
        """Whether the trainer's event comes later than it was thought: it failed meanwhile."""
        if self.busy_what == event and self.now < self.busy_until:
            self.at(self.busy_until, event)
            return True
        return self.busy_what != event

    def _trained(self, *_: int) -> None:
        if not self._early("trained"):
            self.seen.publishing += self.stages.publish
            self._occupy("published", self.stages.publish)

    def _published(self, *_: int) -> None:
        if self._early("published"):
            return
        self.version = self.step + 1
        due = self.version % self.crew.save_every == 0 or self.version == self.crew.steps
        self._occupy("saved", self.stages.save if due else 0.0)
        if due:
            self.seen.saving += self.stages.save
        if not self.crew.colocated:
            self._hand_out()  # workers need not wait for the checkpoint

    def _saved(self, *_: int) -> None:
        if self._early("saved"):
            return
        if self.version % self.crew.save_every == 0:
            self.since_save = 0.0
        self.busy, self.busy_what = False, ""
        self.step += 1
        self.seen.ticks.append(self.now)
        self._hand_out()
        self._train()

    # ---- failures

    def _next_failure(self) -> None:
        if math.isfinite(self.crew.mtbf):
            self.at(self.now + self.rng.expovariate(self.crew.cards / self.crew.mtbf), "failed")

    def _failed(self, *_: int) -> None:
        """A card fails: a worker's shard is given to another; a trainer's ends the job, which resumes at the last checkpoint."""
        self._next_failure()
        self.seen.failures += 1
        card = self.rng.randrange(self.crew.cards)
        if card < self.crew.trainers:
            self._trainer_failed()
            return
        worker = (card - self.crew.trainers) // self.crew.per_worker
        shard = self.job[worker]
        if shard is not None:
            self.seen.lost += max(0.0, self.now - self.began[worker]) * self.crew.per_worker
            self.back.append(shard)
            self.job[worker] = None
        elif worker in self.idle:
            self.idle.remove(worker)
        else:
            return  # it has failed already
        self.at(self.now + self.crew.restart, "recovered", worker)
        self._hand_out()

    def _recovered(self, worker: int, _: int) -> None:
        self.loaded[worker] = -1
        self._free(worker)

    def _trainer_failed(self) -> None:
        """Finished shards are in the ledger, so only updates since the checkpoint are made again."""
        delay = self.crew.restart + self.since_save
        self.seen.lost += (self.since_save + self.crew.restart) * self.crew.trainers
        if self.busy:
            self.busy_until += delay
        else:
            self.busy, self.busy_until, self.busy_what = True, self.now + delay, "resumed"
            self.at(self.busy_until, "resumed")
        if self.crew.colocated:  # its engines are gone too: what they were making begins again
            for worker, shard in enumerate(self.job):
                if shard is not None:
                    self.ends[worker] += delay + max(0.0, self.now - self.began[worker])

    def _resumed(self, *_: int) -> None:
        if not self._early("resumed"):
            self.busy, self.busy_what = False, ""
            self._train()


def simulate(crew: Crew, stages: Stages, seed: int = 0) -> Outcome:
    """One run, a function of the seed."""
    return Simulation(crew, stages, seed).run()
