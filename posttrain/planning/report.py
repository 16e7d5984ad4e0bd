"""A plan in sentences: what fits, seconds by stage, the bottleneck, failures, cost."""

from __future__ import annotations

from posttrain.planning.costs import FAILURES_H
from posttrain.planning.layouts import Plan, Site
from posttrain.planning.memory import Memory

GB = 1e9


def seconds(x: float) -> str:
    if x < 1:
        return f"{1000 * x:.0f} ms"
    return (
        f"{x:.1f} s"
        if x < 100
        else f"{x:,.0f} s"
        if x < 1000
        else f"{x / 60:,.0f} min"
        if x < 36000
        else f"{x / 3600:,.0f} h"
    )


def parts(m: Memory) -> str:
    """Every part of at least half a percent, the largest first."""
    some = sorted(((b, name) for name, b in m.parts.items() if b >= 0.005 * m.total), reverse=True)
    return ", ".join(f"{name} {b / GB:.1f}" for b, name in some)


def memory(role: str, m: Memory) -> str:
    """`card: 70.0 of 76.0 GB: ...`"""
    told = f"{role}: {m.total / GB:.1f} of {m.free / GB:.1f} GB: {parts(m)}"
    told += f"; {m.recomputed} layers recompute their activations" if m.recomputed else ""
    return told + (f"; {m.slots} answers at a time" if m.slots else "")


def too_much(plan: Plan) -> str:
    """What does not fit, and by how much."""
    for role, m in plan.memory.items():
        if not m.fits:
            largest = max(m.parts, key=lambda name: m.parts[name])
            return (
                f"does not fit: a {role} would need {m.total / GB:.0f} of its {m.free / GB:.0f} GB, most for {largest}"
            )
    return "does not fit: no room for the keys and values of a single answer"


def stage_seconds(plan: Plan) -> dict[str, float]:
    """Average seconds per step of each stage, by itself: the slowest engine's rollouts, scoring, training, publishing."""
    assert plan.stages and plan.outcome
    s, count = plan.stages, plan.layout.shards
    rounds = -(-count // plan.layout.workers)
    rollouts = sum(max(step) for step in s.make) / len(s.make) * rounds + s.load
    training = sum(s.train) / len(s.train) + s.host
    return {
        "rollouts": rollouts,
        "rewards": max(s.score * count, s.grade),
        "training": training,
        "publishing": s.publish,
    }


def timed(plan: Plan) -> str:
    """One line per layout: seconds per step, idle shares, throughput."""
    assert plan.outcome
    o = plan.outcome
    waits = ", ".join(f"{role} idle {share:.0%}" for role, share in o.idle.items())
    return f"{seconds(o.step)} per step, {plan.rate:,.0f} tokens/s per card; {waits}"


def by_stage(plan: Plan) -> str:
    assert plan.outcome
    o = plan.outcome
    told = ", ".join(f"{name} {seconds(x)}" for name, x in stage_seconds(plan).items() if x > 0)
    return f"p50 {seconds(o.quantile(0.5))}, p95 {seconds(o.quantile(0.95))}; by itself: {told}"


def bottleneck(plan: Plan, site: Site) -> tuple[str, str]:
    """(what limits the step, what to do about it)."""
    assert plan.outcome and plan.stages
    found = stage_seconds(plan)
    stage = max(found, key=lambda name: found[name])
    share = found[stage] / (sum(found.values()) if not plan.layout.lag else max(plan.outcome.step, found[stage]))
    told = f"{stage}: {share:.0%} of a step"
    if plan.layout.shards < plan.layout.workers:
        idle = plan.layout.workers - plan.layout.shards
        return (
            f"{told}; {idle} of {plan.layout.workers} engines get no prompt",
            f"use --prompts {plan.layout.workers} or more",
        )
    if stage == "rewards":
        return told, "use more --reward-workers"
    if stage == "rollouts":
        steps = plan.stages.make[0]
        tail = max(steps) / (sum(steps) / len(steps)) - 1
        more = f"; the slowest engine takes {tail:.0%} longer than the average one" if tail > 0.05 else ""
        few = plan.slots < min(site.work.answers // plan.layout.shards, 1024)
        fix = "a card with more memory, or fewer --max-tokens, lets more answers run at a time" if few else ""
        return told + more, fix
    return told, ""


def failures(plan: Plan, site: Site) -> str:
    """What failures are expected to cost: a card fails every 50,000 hours, and a job goes back to its last checkpoint."""
    assert plan.outcome
    step, every = plan.outcome.step, site.work.save_every
    between = 3600 * FAILURES_H / plan.layout.trainers
    lost = (300 + every * step / 2) / between
    share = f"{lost:.1%}" if lost >= 0.001 else "less than 0.1%"
    return f"one of the training cards fails every {seconds(between)}; with a checkpoint every {every} steps that costs {share} of the time"


def cost(plan: Plan, steps: int, price: float = 0.0) -> str:
    assert plan.outcome
    hours = plan.outcome.step * steps / 3600
    paid = hours * plan.cards
    told = f"{steps:,} steps take {seconds(3600 * hours)}, {paid:,.{0 if paid >= 10 else 2}f} GPU-hours"
    return told + (f", {price * paid:,.{0 if price * paid >= 10 else 2}f} at {price:g} per GPU-hour" if price else "")
