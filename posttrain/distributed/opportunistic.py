"""Opportunistic sampling: whatever shards are ready make the next step, of weights at most K steps old. Fast, and not reproducible.

Workers have up to K + 1 steps' worth of shards to make, each begun by the newest weights that there are, and continued by newer ones as they
come (`midway.py`); an answer is as old as its oldest token. Step k takes first what
would be too old for step k + 1, waiting if it must, then whatever is finished first; late shards join the next step. Nothing is thrown
away, so long answers are as frequent as they are: a sampler that is ahead of the bound waits instead. That the bound holds:

    before version k - K + 1 is published, only the shards of steps 0 ... k are given out, n of them a step; k n of these have been
    trained on before step k: at most n are left that are K steps old at step k, and it takes them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from functools import reduce
from operator import add
from threading import Lock, Thread
from typing import Any

from posttrain.core.protocols import Curriculum, Environment, Policy, Scorer
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.distributed.remote import RemoteSampler
from posttrain.distributed.shards import Shard, cut, done
from posttrain.distributed.sources import Schedule, Scored, as_tensor, passed
from posttrain.rollouts.sources import LocalSource
from posttrain.runs.wire import unpack


@dataclass
class Piece:
    """A shard on its way: the version that it was begun with (-1: nobody has begun it), and its groups once they are scored."""

    shard: Shard
    version: int
    scored: Future[Scored]


class OpportunisticSource(LocalSource):
    """`Source` over workers that never wait for a whole step. `schedule.lag` is the most that an answer may be behind."""

    def __init__(
        self, policies: Mapping[str, Policy], env: Environment, rollout: Part, scorer: Scorer, curriculum: Curriculum,
        how: tuple[Sampling, int, int], *, schedule: Schedule, sampler: RemoteSampler,
    ) -> None:  # fmt: skip
        super().__init__(policies, env, rollout, scorer, curriculum, how)
        self.schedule, self.sampler, self.ledger = schedule, sampler, sampler.ledger
        self._pieces: dict[tuple[int, int], Piece] = {}  # by (step that it was proposed for, index)
        self._asked = 0  # steps whose prompts were proposed
        self._counts: dict[int, int] = {}  # how many shards a step takes: as many as its prompts made
        self._left: dict[tuple[int, int], list[Prompt]] = {}  # given out before a restart, and not trained on
        self._scoring = Lock()

    def next(self, step: int) -> Scored:
        """As many shards as a step has: those that must not wait, then the first that are ready."""
        self.sampler.ready(step, live=True)
        # also what a run that was killed left of versions to come: a worker takes the newest that lies there
        self._forget(step)
        for (at, index), prompts in sorted(self._left.items()):
            self._send(Shard(at, 0, index, step, tuple(prompts)))
        self._left = {}
        self._ask(step + self.schedule.lag)
        taken = sorted(self._take(step, self._counts.pop(step)))
        found = [self._pieces.pop(key).scored.result() for key in taken]
        groups = [g for some, _ in found for g in some]
        self._last, self._step = groups, step
        return groups, reduce(add, [report for _, report in found])

    def _take(self, step: int, count: int) -> list[tuple[int, int]]:
        oldest = step - self.schedule.lag
        taken = [key for key, p in self._pieces.items() if 0 <= p.version <= oldest]
        while len(taken) < count:
            left = {key: p.scored for key, p in self._pieces.items() if key not in taken}
            wait(left.values(), return_when=FIRST_COMPLETED)
            ready = [key for key, future in left.items() if future.done()]
            taken += sorted(ready)[: count - len(taken)]
        return taken

    def publish(self, version: int) -> None:
        super().publish(version)
        if version < self.schedule.steps:
            self.sampler.ready(version, live=True)
            self._ask(version + self.schedule.lag)
        self._forget(version)

    def _forget(self, version: int) -> None:
        """Versions that nobody can ask for any more."""
        self.sampler.forget(set(range(version - self.schedule.lag - 1, version + 1)))

    def _ask(self, upto: int) -> None:
        """Propose and give out the prompts of the steps up to this one."""
        for step in range(self._asked, min(upto, self.schedule.steps - 1) + 1):
            shards = cut(self.propose(step), self.schedule.shards)
            for index, prompts in enumerate(shards):
                self._send(Shard(step, 0, index, -1, prompts))
            self._asked, self._counts[step] = step + 1, len(shards)

    def _send(self, shard: Shard) -> None:
        """Give a shard out, to be scored when it is back; one that was finished before a restart and is not too old is taken."""
        scored: Future[Scored] = Future()
        piece = self._pieces[shard.step, shard.index] = Piece(shard, -1, scored)
        found = self.ledger.read(shard.step, 0, shard.index) if shard.version >= 0 else None
        if found and shard.version - self.schedule.lag <= found["version"] <= shard.version:
            piece.version, made = found["version"], done(found["groups"])
        else:
            made = self.sampler.submit_newest(shard, lambda version: setattr(piece, "version", version))
        Thread(target=self._score, args=(made, scored), daemon=True).start()

    def _score(self, made: Future[list[Group]], scored: Future[Scored]) -> None:
        try:
            groups = made.result()
            with self._scoring:
                scored.set_result((groups, self.scorer.score(groups)))
        except BaseException as error:  # comes out where the step is asked for
            scored.set_exception(error)

    def on_checkpoint(self, loop: Any, step: int) -> None:
        self.ledger.forget(passed(loop))

    def state_dict(self) -> dict[str, Any]:
        left = {f"{step} {index}": as_tensor(p.shard.prompts) for (step, index), p in self._pieces.items()}
        counts = {str(step): n for step, n in self._counts.items()}
        return super().state_dict() | {"asked": self._asked, "left": left, "counts": counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._asked, self._counts = int(state["asked"]), {int(step): n for step, n in state["counts"].items()}
        for key, prompts in state["left"].items():
            step, index = map(int, key.split())
            self._left[step, index] = unpack(prompts.numpy().tobytes())

    def close(self) -> None:
        self.sampler.close()
