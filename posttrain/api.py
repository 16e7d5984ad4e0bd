"""From settings to a run: build the loop's parts, train, evaluate before and after, write the summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.config import Config, to_dict
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.method import Method, find_method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, Stopped
from posttrain.environments.task import default_task
from posttrain.evals.accuracy import Score, answers, at_test, graded, mean_reward, score_of
from posttrain.evals.accuracy import held_out as held_out_prompts
from posttrain.evals.ranking import ranking
from posttrain.inference.sampling import Sampling
from posttrain.models.load import load_model
from posttrain.models.lora import add_lora
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.runtime.spec import build_scorer, task_scorer
from posttrain.rollouts.source import Synchronous
from posttrain.runs.guard import Guard
from posttrain.runs.run import Run
from posttrain.train import train

Watch = Callable[..., None]


def run(
    config: Config, runs: str | Path = "runs", watch: Any = None, fresh: bool = False, method: Method | None = None
) -> dict[str, Any]:
    """Train as the settings say; returns the summary that is also written to runs/<name>/summary.json.

    method: one that has no name of its own, in place of the one that the settings name.
    """
    method = method or find_method(config.method)
    if config.n is not None:
        method = method.but(rollout=method.rollout.but(n=config.n))
    config = dataclasses.replace(config, task=default_task(config.task, method.rollout.name))
    config = dataclasses.replace(
        config, name=config.name or f"{method.name}-{config.task.replace('/', '-').replace(' + ', '+')}"
    )
    env = environment(config, method)
    scorer = scorer_of(config, method, env)
    policy = load_policy(config)
    if method.scores:
        policy = policy.as_reward_model()
    with Run(Path(runs) / config.name, to_dict(config) | {"parts": method.describe()}, fresh=fresh) as store:
        loop = build_loop(config, method, policy, env, scorer, store)
        loop.role = "reward_model" if method.scores else "policy"
        return _measured(loop, watch)


def environment(config: Config, method: Method) -> Any:
    """The task; for a method that learns from written pairs, the pairs of that name or file; from a log, the log."""
    from posttrain.environments.task import log_task, pair_task, task

    if method.rollout.name == "pairs":
        return pair_task(config.task, data=config.data or None)
    if method.rollout.name == "logged":
        return log_task(config.task)
    return task(config.task, level=config.level, think=config.think, data=config.data or None)


def scorer_of(config: Config, method: Method, env: Any) -> Any:
    """What says how good answers are; those that somebody else wrote come with their worth."""
    if method.rollout.name in ("demonstrations", "pairs", "step_labels"):
        return Prescored()
    if method.rollout.name == "logged" and not config.reward and env.rewarded:
        return Prescored()
    if not config.reward and not getattr(env, "graded", True):
        raise UserError(
            f"{env.name} has no gold answers, so it cannot grade itself; say what is good with --reward NAME "
            "(posttrain list --stage reward), or with a function of yours: --reward mine.py:function"
        )
    return build_scorer(config.reward, env, config.reward_timeout, config.device)


def measure(policy: Any, env: Any, config: Config, method: Method, scorer: Any) -> Score:
    """On held-out problems: accuracy; for written pairs, how often the preferred answer is ranked higher; for prompts
    without gold answers, the run's own reward."""
    if method.rollout.name == "pairs":
        return ranking(policy, env.test[: config.eval_problems])
    if isinstance(scorer, Prescored) and not getattr(env, "graded", True):
        return score_of([], "reward")  # demonstrations alone: nothing says what an answer of its own is worth
    if getattr(env, "graded", True):
        prompts = held_out_prompts(env, config.eval_problems, "test")
        made = answers(policy, prompts, config.sampling, rollout=at_test(method.rollout))
        return graded(made, task_scorer(env, config.reward_timeout), "accuracy")
    return mean_reward(policy, env, config.eval_problems, config.sampling, scorer)


def held_out(found: Score) -> dict[str, float]:
    """As the figure of a step; a step has a reward of its own, so the held-out one has another name."""
    return {"accuracy" if found.name == "accuracy" else f"held_out_{found.name}": found.accuracy}


def load_policy(config: Config) -> Any:
    policy = load_model(config.model, config.device or None, config.dtype, config.bits)
    policy.temperature = config.sampling.temperature or 1.0
    policy.layout = config.layout
    return add_lora(policy, config.lora, seed=config.seed) if config.lora else policy


def build_loop(
    config: Config, method: Method, policy: Any, env: Any, scorer: Any, store: Run, phase: str = "train"
) -> Loop:  # fmt: skip
    """The live parts of a method around a policy."""
    from posttrain.weights.learner import Learner

    lr = config.lr if config.lr is not None else suggested_lr(policy, method)
    decay = config.steps if config.schedule == "linear" else 0
    learner = Learner(policy, method, config.seed, lr, config.warmup, config.max_norm, config.micro_tokens, decay)
    return Loop(
        config=config,
        method=method,
        env=env,
        learner=learner,
        source=Synchronous(policy, method.rollout, config.sampling, config.seed),
        scorer=scorer,
        curriculum=method.prompts.live(),
        run=store,
        phase=phase,
        keep=[p.live() for p in method.keep],
        shaping=[p.live() for p in method.shaping],
        evaluate=lambda p: held_out(measure(p, env, config, method, scorer)),
        guard=Guard(),
    )


def suggested_lr(policy: Any, method: Method) -> float:
    """A learning rate that suits the size: 2e-4 for the embedded model, 8e-6 at 135 M, 1e-6 at 2 B parameters.

    3e-4 / millions^(3/4); preference losses move whole sequences at once and take a third of it.
    """
    millions = sum(p.numel() for p in policy.parameters()) / 1e6
    base = 3e-4 / max(1.0, millions) ** 0.75
    if any(n.endswith("lora_a") for n, _ in policy.named_parameters()):
        base *= 10  # adapters start at no difference and have few directions to move in
    return base / 3 if method.loss.card.stage == "preference_loss" else base


def _measured(loop: Loop, watch: Any) -> dict[str, Any]:
    config, policy = loop.config, loop.learner.policy
    before = measure(policy, loop.env, config, loop.method, loop.scorer)
    if watch:
        loop.watch = watch.step
        watch.begin(loop, before)
    train(loop)
    after = measure(policy, loop.env, config, loop.method, loop.scorer)
    summary = summarise(loop, before, after)
    loop.run.write_summary(summary)
    loop.run.finish(loop.phase)
    if watch:
        watch.end(loop, before, after, summary)
    return summary


def summarise(loop: Loop, before: Score, after: Score) -> dict[str, Any]:
    """What came of a run; time and tokens are sums over its steps, also those of earlier sittings."""
    rows = loop.run.store.series("tokens")
    seconds = sum(row["value"] for row in loop.run.store.times(loop.phase) if row["name"] == "seconds")
    return {
        "task": loop.config.task,
        "method": loop.method.name,
        "model": loop.config.model,
        "seed": loop.config.seed,
        f"{before.name}_before": before.accuracy,
        f"{after.name}_after": after.accuracy,
        "seconds": round(seconds, 2),
        "steps": loop.config.steps,
        "tokens": int(sum(v for _, v in rows)),
        "eval_problems": before.problems,
        "ungraded_before": before.failed,
        "ungraded_after": after.failed,
        "skipped_updates": loop.learner.skipped,
    }


def run_plan(
    plan: Plan, config: Config, runs: str | Path = "runs", watch: Any = None, fresh: bool = False
) -> dict[str, Any]:
    """Every phase in order; a phase that had ended before a restart is not done again, its weights are read back."""
    config = dataclasses.replace(config, name=config.name or plan.name)
    settings = to_dict(config) | {"plan": plan.name, "options": plan.options}
    with Run(Path(runs) / config.name, settings, fresh=fresh) as store:
        context = Context(store, config, {"policy": load_policy(config)})
        context.notes = store.read_notes()
        ended = ""
        try:
            for part in plan.walk(context):
                _do(part, context, watch)
        except Stopped as stop:
            ended = str(stop)
        summary = {"plan": plan.name, "model": config.model, "seed": config.seed, "stopped": ended, **context.notes}
        store.write_summary(summary)
        return summary


def _do(part: Phase | Do | Copy, context: Context, watch: Any) -> None:
    """One part of a plan, unless it was finished before a restart."""
    if isinstance(part, Copy):  # also after a restart: by then the role has the weights it had here
        context.roles[part.to] = context.role(part.role).clone()
        return
    store, name = context.run, part.name
    context.phase = name
    if isinstance(part, Do):
        if not store.finished(name):
            part.work(context)
            store.write_notes(context.notes)
            store.finish(name)
        return
    if part.role not in context.roles:
        if part.make is None:
            raise UserError(f"phase {name!r} trains the role {part.role!r}, but does not say how to make it")
        context.roles[part.role] = part.make(context)
    policy = context.roles[part.role]
    if store.finished(name):
        store.load_weights(name, policy)
        return
    loop = _phase_loop(part, policy, context)
    if watch:
        loop.watch = watch.step
        watch.phase(loop)
    train(loop)
    policy.critic = None
    if part.after:
        part.after(context)
        store.write_notes(context.notes)
    store.finish(name)
    torch.set_grad_enabled(True)


def _phase_loop(part: Phase, policy: Any, context: Context) -> Loop:
    """The loop of a phase: the run's settings, changed as the phase says."""
    name = part.name
    steps = part.steps(context) if callable(part.steps) else part.steps
    seed = rng.key(context.config.seed, name) & 0x7FFFFFFF  # phases, and rounds of a cycle, see other prompts
    config = dataclasses.replace(context.config, **({"steps": steps, "seed": seed} | part.changes))
    env = part.env(context)
    rewards = part.rewards(context) if part.rewards else build_scorer("", env, config.reward_timeout)
    method = part.method
    if config.n is not None and "n" in method.rollout.defaults():
        method = method.but(rollout=method.rollout.but(n=config.n))
    loop = build_loop(config, method, policy, env, rewards, context.run, phase=name)
    loop.evaluate, loop.role = None, part.role
    if part.reference and loop.learner.reference is not None:
        loop.learner.reference.start(context.role(part.reference))
    return loop


__all__ = ["Sampling", "build_loop", "run", "run_plan"]
