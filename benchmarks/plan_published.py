"""Others' published runs beside the planner: their stack is not ours, so what is compared is how time changes with the layout.

Seconds are given too, since their ratio says how far another trainer and another engine are from ours. What a source does not state is
written down in the note of its row. Nothing here was used to fit anything, but for the broadcast of weights (TRL's figure).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.plan_check import Row, shape
from posttrain.planning.hardware import Cluster, cluster
from posttrain.planning.layouts import Plan, Site
from posttrain.planning.lengths import Lengths
from posttrain.planning.work import Work

NEMO = "github.com/NVIDIA-NeMo/RL docs/about/performance-summary.md v0.4, H100"
VERL = "github.com/volcengine/verl docs/advance/fully_async.md, H20"
AREAL = "github.com/inclusionAI/AReaL blog/AReaL_v0_3.md, 8 cards per node, kind not stated (H800 assumed as H100)"


def published() -> Iterator[Row]:
    yield from nemo()
    yield from verl()
    yield from areal()
    yield from syncs()


def colocated(model: str, work: Work, where: Cluster, tp: int = 1) -> Plan:
    """As it is where it fits, else the best division, synchronous."""
    site = Site(shape(model), work, where)
    plan = site.timed(site.colocated())
    return plan if plan.fits else best_split(model, work, where, 0, tp=tp)


def best_split(model: str, work: Work, where: Cluster, lag: int, trainers: int = 0, tp: int = 1) -> Plan:
    """The fastest division of the cards, or the given one; engines of `tp` cards."""
    site = Site(shape(model), work, where)
    every = [site.split(t, lag, tp) for t in ([trainers] if trainers else site.splits()) if where.cards - t >= tp]
    return max((site.timed(plan) for plan in every if plan.fits), key=lambda plan: plan.rate)


def step(plan: Plan) -> float:
    assert plan.outcome, plan.name
    return plan.outcome.step


def nemo() -> Iterator[Row]:
    """2,048 answers per step, average length, cards and cards per engine as stated; groups of 32, prompts of 100 tokens assumed. Its 32B
    model fits in no layout here: a process that trains keeps the whole weights in bf16."""
    rows = (("meta-llama/Llama-3.1-8B", 16, 16, 1, 1060, 97.7, 74.6),)
    for model, few, many, tp, length, sync, off in rows:
        work = Work(64, 32, Lengths(length - 100, 3996, 0.5), 100, save_every=10**6)
        one = colocated(model, work, cluster("8xh100-80gb", few // 8), tp)
        two = best_split(model, work, cluster("8xh100-80gb", many // 8), 1, tp=tp)
        name = model.rpartition("/")[2]
        note = f"{NEMO}; here {one.name}, against {two.name}; division of the cards not stated"
        yield Row(f"NeMo-RL {name}, on policy, {few} cards", "published", "s", sync, step(one), note)
        yield Row(f"NeMo-RL {name}, one step off, {many} cards", "published", "s", off, step(two))
        yield Row(f"NeMo-RL {name}, on policy / one step off", "published", "x", sync / off, step(one) / step(two))


def verl() -> Iterator[Row]:
    """512 x 16 answers of at most 28k tokens. The average is not stated: that with which training takes 313.8 s on 32 cards."""
    rows = {32: (790.1, 357.4, 313.8, 294.8), 64: (365.3, 150.7, 133.4, 189.3), 128: (356.3, 177.9, 113.8, 150.6)}
    model, work = "Qwen/Qwen2.5-Math-7B", Work(512, 16, Lengths(2000, 28000), 200, reference=True, save_every=10**6)

    def sized(mean: float) -> Work:
        return replace(work, lengths=Lengths(mean, 28000))

    def trained(mean: float) -> float:
        plan = colocated(model, replace(sized(mean), reference=False), cluster("8xh20-96gb", 4))
        assert plan.stages
        return sum(plan.stages.train) / len(plan.stages.train)

    mean = min(range(500, 6000, 250), key=lambda x: abs(trained(x) - rows[32][2]))
    seconds = {n: step(colocated(model, sized(mean), cluster("8xh20-96gb", n // 8))) for n in rows}
    for n, (sync, _, _, off) in rows.items():
        note = (
            f"{VERL}; an average of {mean} tokens is fitted to its update on 32 cards; lengths differ between its runs"
        )
        yield Row(f"verl 7B, colocated, {n} cards", "published", "s", sync, seconds[n], note if n == 32 else "")
        split = best_split(model, sized(mean), cluster("8xh20-96gb", n // 8), 1, n // 2)
        yield Row(
            f"verl 7B, colocated / asynchronous {n // 2}:{n // 2}",
            "published",
            "x",
            sync / off,
            seconds[n] / step(split),
        )
    yield Row(
        "verl 7B, colocated, 32 / 64 cards", "published", "x", rows[32][0] / rows[64][0], seconds[32] / seconds[64]
    )
    note = "its 128 cards gain nothing over 64 with the same batch, which it does not explain; answers may have been longer"
    yield Row(
        "verl 7B, colocated, 64 / 128 cards",
        "published",
        "x",
        rows[64][0] / rows[128][0],
        seconds[64] / seconds[128],
        note,
    )


def areal() -> Iterator[Row]:
    """1,000 steps, hours stated; 512 x 16 answers, an average of 8,000 of at most 27,648 tokens assumed (not stated)."""
    work = Work(512, 16, Lengths(8000, 27648), 200, reference=False, save_every=10**6)
    for model, nodes, sync, off in (
        ("DeepSeek-R1-Distill-Qwen-1.5B", 16, 41.0, 14.8),
        ("DeepSeek-R1-Distill-Qwen-7B", 24, 57.7, 25.4),
    ):
        where = cluster("8xh100-80gb", nodes)
        one, two = colocated(model, work, where), best_split(model, work, where, 1)
        note = f"{AREAL}; lengths and batch not stated; here {two.name}; its staleness is up to 4 and answers go on over updates"
        yield Row(
            f"AReaL {model.rpartition('-')[2]}, synchronous / asynchronous",
            "published",
            "x",
            sync / off,
            step(one) / step(two),
            note,
        )


def syncs() -> Iterator[Row]:
    """Weights from trainers to engines on other nodes."""
    for name, count, seconds, note in (
        (
            "TRL 32B, 16 -> 16 H200",
            65.5e9,
            2.3,
            "trl#7104: the share of a link that a broadcast reaches is from this row",
        ),
        ("NeMo-RL Qwen3-4B", 8.0e9, 0.275, "stated as 0.21 to 0.34 s"),
        ("verl 30B, bucketed", 61e9, 4.4, "mixture of experts: its experts are gathered too"),
        (
            "NeMo-RL 30B, resharded",
            61e9,
            0.87,
            "stated as 0.74 to 1.0 s: every rank sends its part, ours sends from one",
        ),
    ):
        where = cluster("8xh100-80gb", 4)
        yield Row(f"weights published, {name}", "published", "s", seconds, where.broadcast(count, 17), note)
