"""Running a plan: every phase in order, resumed where it was."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.config import Config, to_dict
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.pause import Pause, Paused
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, Stopped
from posttrain.core.protocols import Policy
from posttrain.environments.contents import contents
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.runs.build import Pieces, build_loop, load_policy
from posttrain.runs.config_file import plan_call, write_file
from posttrain.runs.run import Run
from posttrain.runs.settings import check_name, made_name
from posttrain.runs.start import Start
from posttrain.runs.threads import settle
from posttrain.train import train


def run_plan(
    plan: Plan, config: Config, runs: str | Path = "runs", fresh: bool = False, callbacks: tuple[Any, ...] = (),
    start: Start | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every phase in order; a phase that had ended before a restart is not done again, its weights are read back."""
    start = start or Start()
    start.of_a_plan(plan.name)
    _single(config, plan.name)
    config = dataclasses.replace(config, name=check_name(config.name or made_name(plan.name)))
    held = contents(config.task)
    settings = to_dict(config) | {"plan": plan.name, "options": plan.options} | start.identity(config, runs)
    settings |= {"contents": held} if held else {}
    with Run(Path(runs) / config.name, settings, fresh=fresh) as store:
        threads = settle(store.folder, config.threads)
        write_file(store, dataclasses.replace(config, threads=threads), plan_call(plan), start)
        context = Context(store, config, {"policy": load_policy(start.resolved(config, runs))})
        context.notes = store.read_notes()
        ended = ""
        try:
            for part in plan.walk(context):
                if start.pause.why:
                    raise Paused(start.pause.why)
                _do(part, context, callbacks, start.pause)
        except Stopped as stop:
            ended = str(stop)
        summary = {"plan": plan.name, "model": config.model, "seed": config.seed, "stopped": ended, **context.notes}
        store.write_summary(summary)
        return summary


def _single(config: Config, plan: str) -> None:
    """Settings that only a single method reads."""
    for key in ("question", "answer", "chosen", "rejected", "stream", "system"):
        if getattr(config, key):
            task = f'; write it into the task: --task "my.jsonl({key}={getattr(config, key)!r})"'
            raise UserError(f"--{key} is for a single method, and {plan} is a plan{'' if key == 'system' else task}")


def _do(part: Phase | Do | Copy, context: Context, callbacks: tuple[Any, ...], pause: Pause) -> None:
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
    if store.finished(name) and store.load_weights(name, policy):
        return  # where its last checkpoint is damaged, the steps after the one before are done again
    loop = _phase_loop(part, policy, context, callbacks)
    loop.pause = pause
    loop.tell("on_phase")
    train(loop)
    policy.critic = None
    if part.after:
        part.after(context)
        store.write_notes(context.notes)
    loop.finish()
    torch.set_grad_enabled(True)


def _phase_loop(part: Phase, policy: Policy, context: Context, callbacks: tuple[Any, ...]) -> Loop:
    """The loop of a phase: the run's settings, changed as the phase says."""
    name = part.name
    steps = part.steps(context) if callable(part.steps) else part.steps
    seed = rng.key(context.config.seed, name) & 0x7FFFFFFF  # phases, and rounds of a cycle, see other prompts
    config = dataclasses.replace(context.config, **({"steps": steps, "seed": seed} | part.changes))
    env = part.env(context)
    rewards = part.rewards(context) if part.rewards else build_scorer("", env, config.reward_timeout)
    method = part.method
    if config.num_generations is not None and "n" in method.rollout.defaults():
        method = method.but(rollout=method.rollout.but(n=config.num_generations))
    pieces = Pieces(env, rewards, context.run, name, callbacks=callbacks, evaluated=False)
    loop = build_loop(config, method, policy, pieces)
    loop.role = part.role
    if part.reference and loop.learner.reference is not None:
        loop.learner.reference.start(context.role(part.reference))
    return loop
