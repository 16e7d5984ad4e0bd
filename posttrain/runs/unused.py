"""A setting that was given and that nothing reads is a mistake: it is refused before anything is loaded, with what to type."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

from posttrain.core.config import ELSEWHERE, Config
from posttrain.core.critic import has_critic
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Plan

TASK = (
    "task",
    "level",
    "think",
    "data",
    "system",
    "prefill",
    "question",
    "answer",
    "stream",
)  # what `asked_task` reads
READS = {"task": TASK, "reward": ("reward",), "steps": ("steps",), "pairs": ("chosen", "rejected")} | {
    "answers": ("num_generations",)  # of best of n, which no phase samples
}
LEARNING = ("lr", "warmup", "schedule", "min_lr", "max_norm", "prompts")  # what the learner of any phase reads
CRITIC = ("critic", "critic_lr", "critic_warmup", "critic_max_norm")
OWN = (
    {name for group in READS.values() for name in group}
    | set(LEARNING)
    | set(CRITIC)
    | set(ELSEWHERE)
    | {"num_generations", "eval_every", "keep_best", "method"}
)
WRITTEN = ("demonstrations", "pairs", "steps")  # kinds of data that come with their answers


def differing(config: Config) -> set[str]:
    """The settings that are not as they would be by themselves."""
    plain = Config()
    return {f.name for f in dataclasses.fields(Config) if getattr(config, f.name) != getattr(plain, f.name)}


def used(plan: Plan) -> set[str]:
    """The settings that a plan reads: those that it declares, those of its phases, and those of every run."""
    out = {f.name for f in dataclasses.fields(Config)} - OWN
    for name in plan.uses or ():
        out |= set(READS[name])
    phases = plan.phases()
    out |= {key for key in LEARNING if any(key not in phase.changes for phase in phases)}
    if any("n" in phase.method.rollout.defaults() for phase in phases):
        out.add("num_generations")
    if any(has_critic(phase.method.reads) for phase in phases):
        out |= set(CRITIC)
    if any(phase.role == "policy" for phase in phases):
        out |= {"eval_every", "keep_best"}
    return out


def refuse_of_plan(plan: Plan, asked: Collection[str]) -> None:
    """One sentence for the first setting that was given and that the plan does not read."""
    for key in sorted(set(asked) - used(plan) - {"method"}):
        own = " ".join(f"--plan.{k.replace('_', '-')} {v!r}" for k, v in plan.options.items())
        has = f"its own options, with their values now: {own}" if own else "it has no options of its own"
        raise UserError(f"{plan.name} is a plan that does not use --{key.replace('_', '-')}; {has}")


def refuse_of_method(method: Method, asked: Collection[str]) -> None:
    """The same for a method: what its data does not have, and its rollout does not take."""
    kind, name = method.rollout.card.data, method.name
    if "num_generations" in asked and "n" not in method.rollout.defaults():
        raise UserError(
            f"{name} does not use --num-generations: its rollout {method.rollout.name} has no number of answers"
        )
    if kind in WRITTEN and "reward" in asked:
        raise UserError(f"{name} learns from written answers, so it does not use --reward; leave it away")
    for key in ("level", "think") if kind in ("pairs", "logs") else ():
        if key in asked:
            what = "written pairs" if kind == "pairs" else "logged answers"
            raise UserError(f"{name} learns from {what}, which have no --{key}; leave it away")


def unread(plan: Plan, context: Context, asked: Collection[str]) -> list[str]:
    """What the plan said it would read, was given, and did not read after all."""
    return sorted(
        key for key in ("task", "reward") if key in asked and key in (plan.uses or ()) and key not in context.read
    )


def named(given: dict[str, Any]) -> set[str]:
    """The settings that objects stand in for."""
    return {{"env": "task", "scorer": "reward", "judge": "reward", "policy": "model"}.get(key, key) for key in given}
