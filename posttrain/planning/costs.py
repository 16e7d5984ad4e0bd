"""What each event of a run lasts, from the model, the hardware, the layout and lengths that are drawn: input of the simulation."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.planning.hardware import PCIE, Cluster
from posttrain.planning.memory import trained_parameters
from posttrain.planning.shapes import Shape
from posttrain.planning.simulate import Crew, Stages
from posttrain.planning.speed import MEASURED, Pace, Speed
from posttrain.planning.work import Work

DRAWN = 60_000  # answers that are drawn at most; further steps repeat the first ones
FAILURES_H = 50_000.0  # hours between failures of one card: 419 in 54 days on 16,384 H100 (Llama 3, arXiv:2407.21783)


@dataclass(frozen=True)
class Layout:
    """Which cards do what."""

    kind: str  # "colocated" or "split"
    trainers: int
    workers: int  # engines
    tp: int = 1  # cards of each
    lag: int = 0
    staleness: int | None = None
    shards: int = 8  # pieces of a step
    slots: int = 1024  # answers at a time in an engine
    recomputed: float = 0.0  # share of the layers that compute their activations twice
    reward_workers: int = 0

    def crew(self, steps: int, work: Work, mtbf_h: float = FAILURES_H, restart: float = 300.0) -> Crew:
        return Crew(
            self.trainers, self.workers, self.tp, self.kind == "colocated", self.lag, self.staleness, steps,
            work.save_every, 3600 * mtbf_h, restart,
        )  # fmt: skip


@dataclass(frozen=True)
class Costs:
    """Seconds of every stage of a layout."""

    shape: Shape
    work: Work
    cluster: Cluster
    layout: Layout
    speed: Speed = MEASURED

    @property
    def pace(self) -> Pace:
        return Pace(self.shape, self.cluster.device, self.speed)

    @property
    def sampler(self) -> Pace:
        return Pace(self.shape, self.cluster.device, self.speed, self.layout.tp)

    def stages(self, steps: int, seed: int = 0) -> tuple[Stages, float]:
        """(what events last, tokens of answers per step)."""
        rng = random.Random(seed)
        distinct = max(1, min(steps, DRAWN // self.work.answers))
        make, train, tokens = [], [], 0
        for _ in range(distinct):
            drawn = self.work.lengths.draw(self.work.answers, rng)
            tokens += sum(drawn)
            make.append(self.shards(drawn))
            train.append(self.train(drawn))
        each = self.work.answers / self.layout.shards
        score = each * self.work.reward_s / max(1, self.layout.reward_workers)
        stages = Stages(
            make, train, score, self.work.reward_s, self.publish(), self.load(), self.save(), self.speed.host
        )
        return stages, tokens / distinct

    def shards(self, lengths: Sequence[int]) -> list[float]:
        """Seconds of each shard: equal slices of the prompts with all their answers."""
        count, n, out = self.layout.shards, self.work.n, []
        for i in range(count):
            first, last = i * self.work.prompts // count, (i + 1) * self.work.prompts // count
            mine = lengths[first * n : last * n]
            out.append(
                self.sampler.sample(mine, last - first, self.work.prompt_tokens, self.layout.slots) + self.judge(mine)
            )
        return out

    def judge(self, lengths: Sequence[int]) -> float:
        """Seconds of the reward model on the card that sampled: one forward pass over every answer."""
        if self.work.reward_shape is None:
            return 0.0
        pace = Pace(self.work.reward_shape, self.cluster.device, self.speed)
        tokens = sum(lengths) + len(lengths) * self.work.prompt_tokens
        pairs = sum((x + self.work.prompt_tokens) ** 2 for x in lengths) / 2
        return pace.forward(tokens, pairs, -(-tokens // self.work.micro_tokens))

    def cells(self, lengths: Sequence[int]) -> list[tuple[int, float]]:
        """(tokens, attended pairs) of each cell: answers in order up to micro_tokens, a prompt once for those that follow it."""
        work, out = self.work, []
        prompt, tokens, pairs, room = -1, 0, 0.0, 0
        for i, length in enumerate(lengths):
            if length > room and tokens:
                out.append((tokens, pairs))
                prompt, tokens, pairs, room = -1, 0, 0.0, 0
            room = room or max(work.micro_tokens, length)
            if i // work.n != prompt:
                prompt = i // work.n
                tokens, pairs = tokens + work.prompt_tokens, pairs + work.prompt_tokens**2 / 2
            tokens, pairs, room = tokens + length, pairs + length * (work.prompt_tokens + length / 2), room - length
            if not room:
                out.append((tokens, pairs))
                prompt, tokens, pairs = -1, 0, 0.0
        return [*out, (tokens, pairs)] if tokens else out

    def train(self, lengths: Sequence[int]) -> float:
        """Seconds of all updates of a step: cells to ranks, longest first; every cell gathers each layer's weights and sums its
        gradients while the one before computes; then clipping and the optimiser on shards."""
        each = sorted((self.cell(tokens, pairs) for tokens, pairs in self.cells(lengths)), reverse=True)
        ranks = [(0.0, 0)] * (self.layout.trainers // self.work.divided)
        for seconds in each:
            heapq.heapreplace(ranks, (ranks[0][0] + seconds, ranks[0][1] + 1))
        compute, rounds = max(ranks)[0], max(count for _, count in ranks)
        exchanged = rounds * self.exchange()
        trained = trained_parameters(self.shape, self.work) * self.work.trunks
        first = self.exchange() / self.shape.layers  # the first layer of a pass waits for its weights
        return (
            max(compute, exchanged)
            + rounds * first
            + self.work.updates * self.pace.step(trained / self.layout.trainers)
        )

    def cell(self, tokens: int, pairs: float) -> float:
        """Seconds of a cell in all updates, and in the reference and the critic's values once. Cards that share it have equal parts of its
        tokens and, by an early chunk and a late one, of its attention."""
        work, frozen = self.work, self.work.lora > 0
        own, part = -(-tokens // work.divided), pairs / work.divided
        seconds = work.updates * work.trunks * self.pace.update(own, part, 1, self.layout.recomputed, frozen)
        seconds += (work.reference + (work.critic == "own")) * self.pace.forward(own, part)
        return seconds + self.gathering(tokens)

    def gathering(self, tokens: int) -> float:
        """Seconds in which the cards that share a cell gather its keys and values in every layer (bf16; again where a layer recomputes) and sum
        their gradients (fp32); not hidden behind anything."""
        work, s = self.work, self.shape
        if work.divided < 2:
            return 0.0
        gather = self.cluster.ring(2 * 2.0 * s.narrow * tokens, work.divided)
        summed = self.cluster.ring(2 * 4.0 * s.narrow * tokens, work.divided)
        update = (1 + self.layout.recomputed) * gather + summed
        read = work.reference + (work.critic == "own")
        return s.layers * (work.updates * work.trunks * update + read * gather)

    def exchange(self) -> float:
        """Seconds of a cell's collectives: bf16 weights gathered forward and backward, fp32 gradients summed into shards."""
        s, work, ranks = self.shape, self.work, self.layout.trainers
        if ranks < 2:
            return 0.0
        whole, units = s.parameters, s.layers + 1
        latency = units * self.cluster.ring(0, ranks)
        gather = self.cluster.ring(2.0 * whole, ranks) + latency
        reduce = self.cluster.ring(4.0 * trained_parameters(s, work), ranks) + latency
        passes = work.updates * work.trunks
        return passes * (2 * gather + reduce) + (work.reference + (work.critic == "own")) * gather

    # ---- weights

    @property
    def sent(self) -> float:
        """Bytes of a version of the weights: adapters alone where they are what is trained."""
        return 2.0 * trained_parameters(self.shape, self.work)

    def publish(self) -> float:
        """Seconds: every layer is gathered, and copied into the rank's own engine or broadcast to the workers."""
        gather = self.cluster.ring(self.sent, self.layout.trainers)
        if self.layout.kind == "colocated":
            return gather + 2 * self.sent / self.cluster.device.traffic
        return gather + self.cluster.broadcast(self.sent, self.layout.workers * self.layout.tp + 1)

    def load(self) -> float:
        """Seconds in which a worker takes a version from its buffer."""
        return 0.0 if self.layout.kind == "colocated" else 2 * self.sent / self.layout.tp / self.cluster.device.traffic

    def save(self) -> float:
        """Seconds in which weights and moments are copied to the host; they are written while the run goes on."""
        return 12.0 * trained_parameters(self.shape, self.work) * self.work.trunks / self.layout.trainers / PCIE
