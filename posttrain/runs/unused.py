"""A setting that was given and that nothing reads is a mistake: it is refused before anything is loaded, with what to type."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from posttrain.core.config import ELSEWHERE, Config
from posttrain.core.critic import has_critic
from posttrain.core.errors import UserError
from posttrain.core.method import Method, find_method
from posttrain.core.plan import Context, Do, Plan
from posttrain.core.sampling import Sampling

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
READS = {
    "task": TASK,
    "reward": ("reward",),
    "steps": ("steps",),
    "pairs": ("chosen", "rejected"),
    "tools": ("tools",),
} | {
    "answers": ("num_generations",)  # of best of n, which no phase samples
}
LEARNING = ("lr", "warmup", "schedule", "min_lr", "max_norm", "prompts")  # what the learner of any phase reads
CRITIC = ("critic", "critic_lr", "critic_warmup", "critic_max_norm")
OWN = (
    {name for group in READS.values() for name in group}
    | set(LEARNING)
    | set(CRITIC)
    | set(ELSEWHERE)
    | {"num_generations", "eval_every", "keep_best", "method", "tools", "user"}
)
DRAWN = frozenset(f"sampling.{f.name}" for f in dataclasses.fields(Sampling))  # how answers are drawn
RECORDED = frozenset({"sampling.raw_logp"})  # read only where answers that were drawn are learned from
DRAWN_BY = {  # plans without a phase that samples as the settings say, and what their own work reads
    "rl-pgd-robustness": frozenset({"sampling.max_tokens"}),
    "rlprompt": frozenset({"sampling.temperature"}),
}
COMPARED = {"pairs": "written pairs", "lists": "ranked lists", "labels": "good and bad answers"}
WRITTEN = ("demonstrations", "steps", *COMPARED)  # kinds of data that come with their answers


def differing(config: Config) -> set[str]:
    """The settings that are not as they would be by themselves."""
    plain = Config()
    return {f.name for f in dataclasses.fields(Config) if getattr(config, f.name) != getattr(plain, f.name)}


def dotted(settings: Mapping[str, Any]) -> set[str]:
    """The names of settings that were given; of those of sampling, each that is not as it would be by itself: sampling.top_p (the
    file of a run names them all)."""
    how = settings.get("sampling") or {}
    inner = {
        k for k, v in (how if isinstance(how, Mapping) else vars(how)).items() if v != getattr(Sampling(), k, None)
    }
    return {k for k in settings if k != "sampling"} | {f"sampling.{k}" for k in inner}


def drawn_by(method: Method) -> frozenset[str]:
    """What a method reads of sampling: all of it where it samples; where its answers are written, what those are drawn with that it is
    measured by; where two written ones are compared, the temperature of log-probabilities, and of a score nothing."""
    kind = method.rollout.card.data
    if kind in ("steps", *COMPARED):
        return frozenset() if method.scores else frozenset({"sampling.temperature"})
    return DRAWN - RECORDED if kind else DRAWN


def drawn_by_plan(plan: Plan) -> frozenset[str]:
    """The same for a plan: of its phases, of the answers that its policy is measured by, and of work that samples."""
    phases = plan.phases()
    out = frozenset().union(*(drawn_by(phase.method) for phase in phases if "sampling" not in phase.changes))
    if plan.name in DRAWN_BY:
        return out | DRAWN_BY[plan.name]
    samples = any(phase.role == "policy" for phase in phases) or any(isinstance(part, Do) for part in plan.parts)
    logged = any(phase.method.rollout.card.data == "logs" for phase in phases)  # that the plan itself collects
    return out | (DRAWN - RECORDED if samples else frozenset()) | (DRAWN if logged else frozenset())


def counts_answers(method: Method) -> bool:
    """Whether a phase of a plan samples so many answers to a prompt; those that the plan collected before are all learned from."""
    return "n" in method.rollout.defaults() and method.rollout.card.data != "logs"


def used(plan: Plan) -> set[str]:
    """The settings that a plan reads: those that it declares, those of its phases, and those of every run."""
    out = ({f.name for f in dataclasses.fields(Config)} - OWN - {"sampling"}) | drawn_by_plan(plan)
    for name in plan.uses or ():
        out |= set(READS[name])
    phases = plan.phases()
    out |= {key for key in LEARNING if any(key not in phase.changes for phase in phases)}
    if any(counts_answers(phase.method) for phase in phases):
        out.add("num_generations")
    critics = [phase for phase in phases if has_critic(phase.method.reads)]
    if critics:
        out |= set(CRITIC) - ({"critic"} if all(phase.critic for phase in critics) else set())
    if any(phase.role == "policy" for phase in phases):
        out |= {"eval_every", "keep_best"}
    return out


def refuse_of_plan(plan: Plan, asked: Collection[str]) -> None:
    """One sentence for the first setting that was given and that the plan does not read."""
    for key in sorted(set(asked) - used(plan) - {"method"}):
        if key == "tools":
            raise UserError(
                f"{plan.name} is a plan made for answers without calls (most plans keep answers as texts between phases, where calls and "
                "results would be lost), so it takes no --tools; methods that sample do: posttrain run grpo --tools FILE, and of the plans "
                "archer and multi-turn-agentic-guide"
            )
        if key == "critic" and any(phase.critic for phase in plan.phases()):
            raise UserError(
                f"{plan.name} begins its critic as the reward model that it trains, so it does not use --critic; leave it away"
            )
        own = " ".join(f"--plan.{k.replace('_', '-')} {v!r}" for k, v in plan.options.items())
        has = f"its own options, with their values now: {own}" if own else "it has no options of its own"
        raise UserError(f"{plan.name} is a plan that does not use --{key.replace('_', '-')}; {has}")


def refuse_of_sampling(method: Method, asked: Collection[str]) -> None:
    """Settings of sampling that a method does not read, because it samples nothing or learns from nothing that was sampled."""
    reads, name = drawn_by(method), method.name
    for key in sorted((set(asked) & DRAWN) - reads):
        option = f"--{key.replace('_', '-')}"
        if not reads:
            raise UserError(
                f"{name} scores written answers and samples none, so it does not use {option}; leave it away"
            )
        if key in RECORDED:
            raise UserError(
                f"{name} learns from written answers, of which no log-probability is recorded; leave {option} away"
            )
        raise UserError(
            f"{name} compares written answers, in training and on held-out pairs, and samples none, so it does not use {option}; leave it away"
        )


def with_answers(count: int | None, method: Method, changed: Mapping[str, Any]) -> Method:
    """The method with so many answers to a prompt (--num-generations). A rollout that was changed to another number contradicts it: one would be lost."""
    if count is None or "n" not in method.rollout.defaults():
        return method
    said = method.rollout.params.get("n") if "rollout" in changed else None
    if said not in (None, count) and find_method(method.name).rollout.params.get("n") != said:
        raise UserError(
            f"--num-generations {count} and --rollout {method.rollout} both say how many answers a prompt gets; leave one of the two away"
        )
    return method.but(rollout=method.rollout.but(n=count))


def refuse_of_method(method: Method, asked: Collection[str]) -> None:
    """The same for a method: what its data does not have, and its rollout does not take."""
    kind, name = method.rollout.card.data, method.name
    if "num_generations" in asked and "n" not in method.rollout.defaults():
        raise UserError(
            f"{name} does not use --num-generations: its rollout {method.rollout.name} has no number of answers"
        )
    if kind in WRITTEN and "reward" in asked:
        raise UserError(f"{name} learns from written answers, so it does not use --reward; leave it away")
    if kind in ("steps", *COMPARED) and "reward_timeout" in asked:
        raise UserError(
            f"{name} learns from written answers that no reward scores, so it does not use --reward-timeout"
        )
    refuse_of_sampling(method, asked)
    for key in ("level", "think") if kind in ("logs", *COMPARED) else ():
        if key in asked:
            what = COMPARED.get(kind, "logged answers")
            raise UserError(f"{name} learns from {what}, which have no --{key}; leave it away")


def refuse_of_unmeasured(method: Method, config: Config, asked: Collection[str], measures: bool) -> None:
    """Where answers are written, those that are sampled are for measuring: without it, how they would be is read by nothing."""
    if method.rollout.card.data not in ("demonstrations", "logs") or (measures and config.eval_problems):
        return
    for key in sorted((set(asked) & DRAWN) - {"sampling.temperature"}):
        why = (
            "with --eval-problems 0 nothing is measured"
            if measures
            else "nothing here can grade an answer of the policy"
        )
        option = f"--{key.replace('_', '-')}"
        raise UserError(
            f"{method.name} learns from written answers, and {why}, so it does not use {option}; leave it away"
        )


def unread(plan: Plan, context: Context, asked: Collection[str]) -> list[str]:
    """What the plan said it would read, was given, and did not read after all."""
    return sorted(
        key for key in ("task", "reward") if key in asked and key in (plan.uses or ()) and key not in context.read
    )


def named(given: dict[str, Any]) -> set[str]:
    """The settings that objects stand in for."""
    return {{"env": "task", "scorer": "reward", "judge": "reward", "policy": "model"}.get(key, key) for key in given}
