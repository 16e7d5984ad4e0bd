"""Running a plan: every phase in order, resumed where it was."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.config import Config, to_dict
from posttrain.core.errors import UserError
from posttrain.core.identity import identity
from posttrain.core.json_file import read_object
from posttrain.core.loop import Loop
from posttrain.core.pause import Pause, Paused
from posttrain.core.plan import Context, Copy, Do, Make, Phase, Plan, Stopped
from posttrain.core.protocols import Policy
from posttrain.environments.contents import contents, mentioned
from posttrain.environments.conversions import KINDS
from posttrain.evals.accuracy import Score
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.spec import build_scorer, names_judge
from posttrain.rollouts.sample import sample
from posttrain.runs.build import HeldOut, Pieces, asked_environment, build_loop, load_policy, measure, said_first
from posttrain.runs.config_file import plan_call, write_file
from posttrain.runs.fit import fit
from posttrain.runs.idle import refuse_of_options
from posttrain.runs.observers import tell_loading
from posttrain.runs.rate import suggested_lr
from posttrain.runs.refuse import refuse_of_data, refuse_of_phases
from posttrain.runs.run import DONE, Run
from posttrain.runs.settings import check_name, made_name
from posttrain.runs.start import Start
from posttrain.runs.threads import settle
from posttrain.runs.told import tell_left_out
from posttrain.runs.unused import counts_answers, named, refuse_of_plan, unread
from posttrain.train import train


@dataclasses.dataclass
class Asked:
    """What a call asks of a plan besides the settings: which of them it gave (None: nobody knows), and objects in place of names:
    policy, env, scorer."""

    settings: Collection[str] | None = None
    objects: dict[str, Any] = dataclasses.field(default_factory=dict)


def run_plan(
    plan: Plan, config: Config, runs: str | Path = "runs", fresh: bool = False, callbacks: tuple[Any, ...] = (),
    start: Start | None = None, asked: Asked | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every phase in order; a phase that had ended before a restart is not done again, its weights are read back. The policy is
    measured on held-out problems before the first phase and after the last, as by a method."""
    start, asked = start or Start(), asked or Asked()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        raise UserError(
            f"{plan.name} is a plan of several phases, which run in one process so far; start it without torchrun"
        )
    if plan.missing:
        raise UserError(plan.missing)
    start.of_a_plan(plan.name)
    gave = named(asked.objects) | set(asked.settings or ())
    if asked.settings is not None:
        refuse_of_plan(plan, gave)
    refuse_of_phases(plan, config)
    config = dataclasses.replace(config, name=check_name(config.name or made_name(plan.name)))
    context = Context(None, config, {}, given=asked.objects, asked=None if asked.settings is None else gave)
    if plan.ready:
        plan.ready(context)
    refuse_of_options(plan, context)
    refuse_of_data(plan, context)
    with Run(Path(runs) / config.name, _identity(plan, config, runs, start, asked.objects), fresh=fresh) as store:
        threads = settle(store.folder, config.threads, config.device)
        write_file(store, dataclasses.replace(config, threads=threads), plan_call(plan), start, None, asked.objects)
        tell_loading(callbacks, config, measured=False)
        policy = asked.objects["policy"] if "policy" in asked.objects else load_policy(start.resolved(config, runs))
        context.run, context.roles, context.notes = store, {"policy": policy}, store.read_notes()
        walk = Walk(plan, context, callbacks, start.pause)
        ended = walk.whole()
        if walk.at_once and not ended and (forgotten := unread(plan, context, gave)):
            told = ", ".join(f"--{key}" for key in forgotten)
            logging.getLogger("posttrain").warning("%s never read %s, which was given", plan.name, told)
        return walk.conclude(ended)


def _identity(plan: Plan, config: Config, runs: str | Path, start: Start, objects: dict[str, Any]) -> dict[str, Any]:
    """What makes this run another than one with the same name: settings, options, contents of files, objects."""
    held = contents("" if "env" in objects else config.task)
    for option in plan.options.values():
        held |= mentioned(option) if isinstance(option, str) else {}
    settings = to_dict(config) | {"plan": plan.name, "options": plan.options}
    settings |= start.identity(config, runs, model="policy" not in objects)
    names = (("env", "task"), ("scorer", "reward"), ("judge", "reward"))
    told = {name: identity(objects[key]) for key, name in names if key in objects}
    return settings | ({"contents": held} if held else {}) | ({"objects": told} if told else {})


class Walk:
    """A plan on its way: the parts in order, with a look at held-out problems before and after."""

    def __init__(self, plan: Plan, context: Context, callbacks: tuple[Any, ...], pause: Pause) -> None:
        self.plan, self.context, self.callbacks, self.pause = plan, context, callbacks, pause
        self.look = look(plan, context)
        self.before = self.look(context.role("policy")) if self.look else None
        self.loop: Loop | None = None  # of the last phase that trained in this session
        self.at_once = True  # no part was done before a restart, where it read who knows what
        if self.before is not None:
            context.run.state.now(score=self.before.name, before=self.before.accuracy)

    def whole(self) -> str:
        """Every part; why a gate ended it early, if one did."""
        try:
            for part in self.plan.walk(self.context):
                if self.pause.why:
                    raise Paused(self.pause.why)
                self.do(part)
        except Stopped as stop:
            return str(stop)
        return ""

    def do(self, part: Phase | Do | Copy | Make) -> None:
        """One part of a plan, unless it was finished before a restart."""
        context = self.context
        if isinstance(part, Copy):  # also after a restart: by then the role has the weights it had here
            context.roles[part.to] = context.role(part.role).clone()
            return
        if isinstance(part, Make):
            context.roles[part.role] = part.make(context)
            return
        store, name = context.run, part.name
        context.phase = name
        if isinstance(part, Do):
            if store.finished(name):
                self.at_once = False
                return
            if not noted(store, name):
                part.work(context)
                store.write_notes(context.notes, done=name)
            store.finish(name)
            return
        if part.role not in context.roles:
            if part.make is None:
                raise UserError(f"phase {name!r} trains the role {part.role!r}, but does not say how to make it")
            context.roles[part.role] = part.make(context)
        if store.finished(name) and store.load_weights(name, context.roles[part.role]):
            self.at_once = False
            return  # where its last checkpoint is damaged, the steps after the one before are done again
        self.learn(part, context.roles[part.role])

    def learn(self, part: Phase, policy: Any) -> None:
        context = self.context
        loop = _phase_loop(part, policy, context, self.callbacks)
        if self.look and part.role == "policy":
            loop.evaluator = HeldOut(self.look)
        loop.pause = self.pause
        if self.loop is None and self.before is not None:
            loop.tell("on_begin", self.before)
        self.loop = loop
        loop.tell("on_phase")
        train(loop)
        policy.critic = None
        if part.after and not noted(context.run, part.name):
            part.after(context)
            context.run.write_notes(context.notes, done=part.name)
        loop.finish()
        torch.set_grad_enabled(True)

    def conclude(self, ended: str) -> dict[str, Any]:
        """The summary, and what it says to whoever watches."""
        context, store = self.context, self.context.run
        c = context.config
        summary = {"plan": self.plan.name, "task": c.task, "model": c.model, "seed": c.seed, "stopped": ended}
        summary |= {
            "seconds": round(sum(value for _, value in store.store.series("seconds")), 2),
            "tokens": int(sum(value for _, value in store.store.series("tokens"))),
        }
        after = self.look(context.role("policy")) if self.look else None
        if self.before is not None and after is not None:
            summary |= {
                f"{after.name}_before": self.before.accuracy, f"{after.name}_after": after.accuracy,
                "eval_problems": after.problems, "ungraded_before": self.before.failed, "ungraded_after": after.failed,
            }  # fmt: skip
            store.write_held_out(self.before, after)
        summary |= context.notes
        store.write_summary(summary)
        if self.loop is not None and after is not None:
            self.loop.tell("on_end", self.before, after, summary)
        return summary


def noted(store: Run, part: str) -> bool:
    """Whether a part's work is in the notes, though a kill came before it was finished: it is not done twice."""
    return (read_object(store.folder / "notes.json") or {}).get(DONE) == part


def look(plan: Plan, context: Context) -> Callable[[Policy], Score] | None:
    """How the policy is measured: on the held-out problems of the task, as a method is; on those of the last phase that trains it where
    the plan has its own. None where no phase trains it, or nothing can score an answer yet."""
    phases = [phase for phase in plan.phases() if phase.role == "policy"]
    if not phases or context.config.eval_problems == 0:
        return None
    config, last = context.config, phases[-1]
    asks = plan.uses or ()
    how = last.method
    made = "task" in asks and not last.measured
    if made and how.rollout.card.data in KINDS:  # preferences that it makes itself: its answers are measured
        how = how.but(rollout=sample)
    if "task" not in asks or last.measured:
        env = last.env(context)
    else:
        env = said_first(context.given["env"], config) if "env" in context.given else asked_environment(config)
    if env.opens and how.rollout.card.data:  # it imitates conversations, and is measured in episodes
        how = how.but(rollout=sample)
    env = fit(env, context.role("policy"), how, config.sampling)
    tell_left_out(env)
    if "scorer" in context.given:
        scorer = context.given["scorer"]
    elif "reward" in asks and config.reward and not names_judge(config.reward):
        scorer = build_scorer(config.reward, env, config.reward_timeout, config.device)
    elif env.graded or env.opens or how.rollout.card.data in KINDS:
        scorer = Prescored()
    else:
        return None
    return lambda policy: measure(policy, config, how, env, scorer)


def _phase_loop(part: Phase, policy: Policy, context: Context, callbacks: tuple[Any, ...]) -> Loop:
    """The loop of a phase: the run's settings, changed as the phase says."""
    name = part.name
    steps = part.steps(context) if callable(part.steps) else part.steps
    seed = rng.key(context.config.seed, name) & 0x7FFFFFFF  # phases, and rounds of a cycle, see other prompts
    config = dataclasses.replace(context.config, **({"steps": steps, "seed": seed} | part.changes))
    if part.pace != 1.0:
        given = config.lr if config.lr is not None else suggested_lr(policy)
        config = dataclasses.replace(config, lr=part.pace * given)
    env = part.env(context)
    rewards = part.rewards(context) if part.rewards else build_scorer("", env, config.reward_timeout)
    method = part.method
    if config.num_generations is not None and counts_answers(method):
        method = method.but(rollout=method.rollout.but(n=config.num_generations))
    env = fit(env, policy, method, config.sampling)
    if part.critic:
        policy.critic = part.critic(context)  # type: ignore[attr-defined]
    others = {o.role: context.role(o.role) for o in method.others if o.role in context.roles}
    pieces = Pieces(env, rewards, context.run, name, others, callbacks=callbacks, evaluated=False)
    loop = build_loop(config, method, policy, pieces)
    loop.role = part.role
    if part.reference and loop.learner.reference is not None:
        _refer(part, loop, context)
    return loop


def _refer(part: Phase, loop: Loop, context: Context) -> None:
    """The reference of a phase: a role, or a blend of several."""
    if isinstance(part.reference, str):
        loop.learner.reference.start(context.role(part.reference))
        return
    if part.role in part.reference:  # after a restart it would be the role as it is by then
        raise UserError(f"phase {part.name!r} trains {part.role!r} and blends it into its reference; copy it first")
    loop.learner.reference.blend([(weight, context.role(role)) for role, weight in part.reference.items()])
