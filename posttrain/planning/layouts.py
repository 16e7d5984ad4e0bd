"""The ways to lay a run out on a cluster: which fit, how fast each would be, and the best of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from posttrain.planning import memory
from posttrain.planning.costs import Costs, Layout
from posttrain.planning.hardware import Cluster
from posttrain.planning.memory import Memory
from posttrain.planning.outcome import Outcome
from posttrain.planning.shapes import Shape
from posttrain.planning.simulate import Stages, simulate
from posttrain.planning.speed import MEASURED, Speed
from posttrain.planning.work import Work

SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8)  # of the cards that train, where some only sample
STEPS = 16  # that are simulated to compare layouts
WORTH = 1.05  # how many times faster something less simple must be to be preferred


@dataclass(frozen=True)
class Plan:
    """A layout with its memory by role and, where it fits, its simulated run."""

    layout: Layout
    memory: dict[str, Memory]  # by role
    stages: Stages | None = None
    outcome: Outcome | None = None
    tokens: float = 0.0  # of answers per step
    cards: int = 0  # of the cluster: those that a layout leaves unused are paid for too

    @property
    def name(self) -> str:
        lay = self.layout
        if lay.staleness is not None:
            when = f"at most {lay.staleness} step{'s' * (lay.staleness > 1)} stale"
        else:
            when = f"lag {lay.lag}" if lay.lag else "synchronous"
        wide = f" of {lay.tp} cards" if lay.tp > 1 else ""
        where = "colocated" if lay.kind == "colocated" else f"{lay.trainers} train, {lay.workers} sample{wide}"
        return f"{where}, {when}"

    @property
    def fits(self) -> bool:
        return all(m.fits for m in self.memory.values()) and self.slots > 0

    @property
    def slots(self) -> int:
        return next(m.slots for role, m in self.memory.items() if role != "trainer")

    @property
    def rate(self) -> float:
        """Tokens of answers per second and card."""
        return self.tokens / self.outcome.step / self.cards if self.outcome else 0.0


@dataclass(frozen=True)
class Site:
    """A model, a step's work and the cluster they are planned for."""

    shape: Shape
    work: Work
    cluster: Cluster
    speed: Speed = MEASURED
    reward_workers: int = 0

    def colocated(self, lag: int = 0) -> Plan:
        cards = self.cluster.cards
        shards = min(cards, self.work.prompts)
        answers = -(-self.work.prompts // shards) * self.work.n
        found = memory.colocated(self.shape, self.work, cards, answers, self.cluster.device.memory)
        layout = Layout(
            "colocated", cards, cards, 1, lag, None, shards, found.slots, found.recomputed / self.shape.layers, self.reward_workers
        )  # fmt: skip
        return Plan(layout, {"card": found})

    def split(self, trainers: int, lag: int = 0, tp: int = 1) -> Plan:
        """Some cards train, the others are engines of `tp` cards each."""
        workers, free = (self.cluster.cards - trainers) // tp, self.cluster.device.memory
        shards = min(workers, self.work.prompts)
        answers = -(-self.work.prompts // shards) * self.work.n
        trained = memory.trainer(self.shape, self.work, trainers, free)
        found = memory.worker(self.shape, self.work, answers, free, tp)
        layout = Layout(
            "split", trainers, workers, tp, lag, None, shards, found.slots, trained.recomputed / self.shape.layers, self.reward_workers
        )  # fmt: skip
        return Plan(layout, {"trainer": trained, "rollout card": found})

    def wide(self, trainers: int) -> list[int]:
        """Cards that an engine may be spread over by tensor parallel: within a node, dividing its heads."""
        rest = min(self.cluster.per_node, self.cluster.cards - trainers)
        return [x for x in (2, 4, 8) if x <= rest and self.shape.kv_heads % x == 0]

    def splits(self) -> list[int]:
        """Numbers of cards that train: any on one node or two, whole nodes on more."""
        unit = self.cluster.per_node if self.cluster.nodes > 2 else 1
        cards = self.cluster.cards
        found = {max(unit, round(share * cards / unit) * unit) for share in SHARES} - {cards} if cards > 1 else set()
        return sorted(x for x in found if x % self.work.divided == 0)

    def timed(self, plan: Plan, steps: int = STEPS, seed: int = 0) -> Plan:
        """The plan with its run simulated; as it was where it does not fit."""
        if not plan.fits:
            return plan
        stages, tokens = Costs(self.shape, self.work, self.cluster, plan.layout, self.speed).stages(steps, seed)
        outcome = simulate(plan.layout.crew(steps, self.work), stages, seed)
        return replace(plan, stages=stages, outcome=outcome, tokens=tokens, cards=self.cluster.cards)

    def plans(self) -> Iterator[Plan]:
        """Colocated, with a lag of one step too where there is a slow reward, which is all that it hides there; the best split, synchronous,
        with a lag of one step or two, or opportunistic; the best with engines of several cards where it is faster, or all that fits."""
        yield from (self.timed(self.colocated(lag)) for lag in ((0, 1) if self.work.reward_s else (0,)))
        single = [self.split(trainers, lag=1) for trainers in self.splits()]
        several = [self.split(t, lag=1, tp=tp) for t in self.splits() for tp in self.wide(t)]
        best, wide = (max(map(self.timed, filter(_fits, some)), key=_rate, default=None) for some in (single, several))
        if best:
            yield self.timed(replace(best, layout=replace(best.layout, lag=0)))
            yield best
            yield self.timed(replace(best, layout=replace(best.layout, lag=2)))
            yield self.timed(replace(best, layout=replace(best.layout, lag=0, staleness=1)))
        if wide and (best is None or wide.rate > WORTH * best.rate):
            yield wide
        if not best and not wide:
            yield from sorted(single + several, key=lambda p: max(m.total / m.free for m in p.memory.values()))[:1]


def _fits(plan: Plan) -> bool:
    return plan.fits


def _rate(plan: Plan) -> float:
    return plan.rate


def choose(plans: list[Plan]) -> Plan | None:
    """The fastest that fits; of nearly equal ones the first, and they come with the simplest first. One that is not reproducible is never
    chosen for the user, and engines of several cards only where nothing else fits: they are not posttrain's own."""
    fitting = [p for p in plans if p.outcome and p.layout.staleness is None]
    best: Plan | None = None
    for plan in [p for p in fitting if p.layout.tp == 1] or fitting:
        if best is None or plan.rate > WORTH * best.rate:
            best = plan
    return best


def remedies(site: Site) -> list[tuple[str, Site]]:
    """What could be changed where nothing fits, each with the site as it would then be."""
    work, c = site.work, site.cluster
    out = [] if work.lora else [("--lora 16", replace(site, work=replace(work, lora=16)))]
    out += [(f"--nodes {k * c.nodes}", replace(site, cluster=replace(c, nodes=k * c.nodes))) for k in (2, 4, 8, 16)]
    if not work.lora:
        few = replace(work, lora=16)
        out += [
            (f"--lora 16 --nodes {k * c.nodes}", replace(site, work=few, cluster=replace(c, nodes=k * c.nodes)))
            for k in (2, 4, 8, 16)
        ]
    for part in (2, 4, 8):
        if (most := work.lengths.most // part) >= 256:
            lengths = replace(work.lengths, most=most, mean=min(work.lengths.mean, most))
            out.append((f"--context {most + work.prompt_tokens}", replace(site, work=replace(work, lengths=lengths))))
    out += [
        (f"--context-parallel {n}", replace(site, work=replace(work, divided=n)))
        for n in (2, 4, 8, 16)
        if n > work.divided and c.cards % n == 0
    ]
    out += [
        (f"--micro-tokens {n}", replace(site, work=replace(work, micro_tokens=n)))
        for n in (16384, 8192, 4096, 2048)
        if work.lengths.most <= n < work.micro_tokens
    ]
    return out


def fits_somehow(site: Site) -> bool:
    return site.colocated().fits or any(site.split(t, 0, tp).fits for t in site.splits() for tp in (1, *site.wide(t)))


def what_would_fit(site: Site) -> list[str]:
    """The least change of each kind with which some layout fits."""
    found: dict[str, str] = {}
    for change, other in remedies(site):
        kind = " ".join(change.split()[::2])
        if kind == "--lora --nodes" and found:
            continue  # one change is enough
        if kind not in found and fits_somehow(other):
            found[kind] = change
    return list(found.values())
