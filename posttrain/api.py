"""The Python API: `posttrain.run(...)` with objects or strings; the command line calls the same functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.core.config import Config, followed, from_dict, to_dict
from posttrain.core.errors import UserError
from posttrain.core.identity import identity
from posttrain.core.loop import Loop
from posttrain.core.method import Method, find_method
from posttrain.core.pause import Pause, Paused
from posttrain.core.ranks import ranks
from posttrain.core.registry import Part, find, fold, parse, parts
from posttrain.distributed.choose import Elsewhere, closing, settled
from posttrain.distributed.group import joined
from posttrain.distributed.led import led
from posttrain.distributed.refuse import refuse as refuse_elsewhere
from posttrain.environments.adapters.verifiers import adopt
from posttrain.environments.contents import contents, mentioned
from posttrain.environments.conversions import KINDS
from posttrain.environments.task import default_task, of_rows
from posttrain.evals.accuracy import Score
from posttrain.policies.vllm.choose import sampling_engine
from posttrain.rewards.runtime.score import RewardSum, best_effort, say_once
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.judging import is_judge
from posttrain.runs.best import best_of
from posttrain.runs.build import Pieces, build_loop, environment, measure, said_first, scorer_of
from posttrain.runs.config_file import method_changes, write_file
from posttrain.runs.fit import fit
from posttrain.runs.observers import observers, tell_loading, trace_of
from posttrain.runs.plans import Asked, run_plan
from posttrain.runs.ranked import open_run
from posttrain.runs.refuse import held_out, refuse, suits
from posttrain.runs.settings import check_name, made_name
from posttrain.runs.start import Start
from posttrain.runs.threads import settle
from posttrain.runs.told import tell_left_out, understood
from posttrain.runs.tool_files import take_tools, tooled
from posttrain.runs.unused import dotted, refuse_of_method, refuse_of_unmeasured, with_answers
from posttrain.runs.users import with_users
from posttrain.train import train


def run_config(
    config: Config, runs: str | Path = "runs", fresh: bool = False, method: Method | None = None,
    callbacks: tuple[Any, ...] = (), **given: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train as the settings say; returns the summary that is also written to runs/<name>/summary.json.

    method: one that has no name of its own, in place of the one that the settings name. given: objects in place of what the
    settings name: policy, env, scorer, source (a class like LocalSource), others (policies by role); and start (runs/start.py):
    from which run, for how long; asked: names of the settings that somebody gave.
    """
    with joined(config.device, config.shards or 8, config.exact_sums):
        return _run_config(config, runs, fresh, method, callbacks, given)


def _run_config(
    config: Config,
    runs: str | Path,
    fresh: bool,
    method: Method | None,
    callbacks: tuple[Any, ...],
    given: dict[str, Any],
) -> dict[str, Any]:
    start: Start = given.pop("start", None) or Start()
    asked = given.pop("asked", ())
    method, config = method or find_method(config.method), settled(config)
    target, changes, unnamed = method_changes(config.method, method)
    method = with_answers(config.num_generations, method, changes)
    method = method.within(followed(config))
    refuse(config, method, None if method.scores else given.get("policy"))  # before anything is loaded
    refuse_elsewhere(config, method, given)
    config = dataclasses.replace(config, task=default_task(config.task, method.rollout.card.data))
    name = config.name or made_name(method.name, config.task.replace(" + ", "+"))
    config = dataclasses.replace(config, name=check_name(name), model=start.source or config.model)
    env = tooled(
        lambda c: said_first(given["env"], c) if "env" in given else environment(c, method), config, given, method
    )
    suits(method, env)
    scorer = given["scorer"] if "scorer" in given else scorer_of(config, method, env)
    scored = not isinstance(scorer, Prescored)
    refuse_of_unmeasured(method, config, asked, scored or env.graded or env.opens)
    if method.rollout.card.data not in KINDS:  # they may all be trained on: nothing else is asked of them
        held_out(config, env, scored)
    inputs = start.identity(config, runs, model="policy" not in given)
    tell_loading(callbacks, config)
    policy = as_given(given["policy"], config) if "policy" in given else start.policy(config, runs)
    if method.scores:
        policy = policy.as_reward_model()
    refuse(config, method, policy)
    env = fit(env, policy, method, config.sampling)
    extra = {k: given[k] for k in ("source",) if k in given} | with_users(config, env, runs, given)
    settings = to_dict(config) | {"parts": method.describe()} | objects(given) | inputs | files(config, given)
    with open_run(Path(runs) / config.name, settings, fresh=fresh, extend=start.extend) as store:
        threads = settle(store.folder, config.threads, config.device)
        repeated = dataclasses.replace(config, threads=threads)
        if ranks().lead:
            write_file(store, repeated, target, start, changes, [*unnamed, *given])
        if start.reuse and store.finished("train") and (summary := store.read_summary()):
            return summary
        workers = Elsewhere(start.for_workers(config, runs), store.folder, given, start.use)
        with sampling_engine(policy, config, store.folder), closing(workers) as source:
            workers.rewards(scorer, method.rollout)
            extra |= {"source": led(source)} if source else {}
            pieces = Pieces(env, scorer, store, callbacks=callbacks, pause=start.pause, **extra)
            loop = build_loop(config, method, policy, pieces)
            loop.role = "reward_model" if method.scores else "policy"
            start.load_optimisers(loop, runs)
            tell_data(loop)
            return _measured(loop, scorer, extra.get("others", {}))


def tell_data(loop: Loop) -> None:
    """What was understood of the data, to whoever shows it; rows that were left out are told in any case."""
    loop.tell("on_data", understood(loop.env, loop.policy, loop.method.rollout.card.data, loop.config.reward))
    if not any(hasattr(c, "on_data") for c in loop.callbacks):
        tell_left_out(loop.env)


def objects(given: dict[str, Any]) -> dict[str, Any]:
    """What was given in Python, as settings: another reward, other rows or another environment are another run."""
    names = {"env": "task", "scorer": "reward", "tools": "tools"}
    found = {names[k]: identity(given[k]) for k in names if k in given}
    return {"objects": found} if found else {}


def as_given(policy: Any, config: Config) -> Any:
    """A policy that was given in Python; settings of loading one cannot be meant for it."""
    for key in ("lora", "bits", "adapter", "dtype"):
        if getattr(config, key):
            raise UserError(
                f"{key} says how a model is loaded, and this one was given as an object; give its name or folder, or leave {key} away"
            )
    return policy


def files(config: Config, given: dict[str, Any]) -> dict[str, Any]:
    """What the files of the task and of the tools hold, as settings: with other contents it is another run."""
    found = contents("" if "env" in given else config.task) | (mentioned(config.tools) if config.tools else {})
    return {"contents": found} if found else {}


def run(
    *, model: Any = "pocket", task: Any = None, env: Any = None, reward: Any = None, method: str | Method = "grpo",
    tools: Any = None, callbacks: Sequence[Any] = (), **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train, with objects or strings; returns the summary.

    model: a name, folder or hub id, or a Policy. task: a name, a file, or a list of rows ({"question": ..., "answer": ...});
    env: an Environment instead. reward: a function of yours (for plans that learn from comparisons also a judge, of
    (prompt, a, b)), a name, or a run of a reward model. method: a name (a plan's too) or a Method. tools: functions that the
    model may call, or their file ("mine.py(max_turns=4)"). callbacks: objects with any of on_load,
    on_data, on_begin, on_rollouts, on_step, on_eval, on_checkpoint, on_end.
    settings: anything else that `Config` has (steps, lr, num_generations, `sampling={...}` ...), runs="runs" for the folder of
    all runs, fresh=True to start over, start_from="runs/NAME" to begin with the weights and optimiser state of a run
    (optimizer=False: with its weights), extend_schedule=True to go on past the end of a schedule, max_hours=3.5 to stop after
    that time: the summary then has "paused", and the same call goes on. track="tensorboard" mirrors metrics to a dashboard,
    profile=True writes a trace.
    """
    plain: dict[str, Any] = dict(settings)
    _no_stages(plain)
    runs, fresh = plain.pop("runs", "runs"), bool(plain.pop("fresh", False))
    track, profile = str(plain.pop("track", "")), bool(plain.pop("profile", False))
    start = _start(plain)
    plan = isinstance(method, str) and _is_plan(method)
    chosen = None if plan else find_method(method) if isinstance(method, str) else method
    given: dict[str, Any] = {}
    if isinstance(model, str | Path):
        plain["model"] = str(model)
    else:
        given["policy"] = model
        plain["model"] = getattr(model, "name", "") or type(model).__name__
    if env is not None:
        given["env"] = adopt(env)
        plain["task"] = given["env"].name
    elif isinstance(task, str | Path):
        plain["task"] = str(task)
    elif task is not None:
        said = {k: plain[k] for k in ("question", "answer", "chosen", "rejected") if plain.get(k)}
        given["env"] = of_rows(task, chosen.rollout.card.data if chosen else "", bool(plain.get("think")), **said)
        plain["task"] = "rows"
    if isinstance(reward, str):
        plain["reward"] = reward
    elif plan and is_judge(reward) and not hasattr(reward, "score"):
        given["judge"], plain["reward"] = reward, ""
    elif reward is not None:
        name = getattr(reward, "__name__", "reward")
        given["scorer"] = reward if hasattr(reward, "score") else RewardSum([(name, reward, 1.0)])
        if not hasattr(reward, "score") and not isinstance(reward, Part):
            say_once(best_effort(name))
        plain["reward"] = ""
    take_tools(tools, plain, given, plan)
    if isinstance(method, str):
        plain["method"] = method
    whole: Any = find(str(method), "plan")() if chosen is None else chosen
    config = from_dict(Config, whole.own(plain))
    known = {f.name for f in dataclasses.fields(Config)}
    named = dotted({k: v for k, v in settings.items() if k in known and v is not None})
    if "policy" in given and "sampling.temperature" in named and hasattr(model, "temperature"):
        model.temperature = (
            config.sampling.temperature or 1.0
        )  # trained at what it is sampled at, as one that is loaded
    try:
        with observers(track, profile) as more:
            told = (*callbacks, *more)
            if chosen is not None:
                refuse_of_method(chosen, named | ({"reward"} if isinstance(reward, str) and reward else set()))
                return run_config(config, runs, fresh, chosen, told, start=start, asked=named, **given)
            asked = Asked(said_by(model, task, env, reward) | named, given)
            return run_plan(whole, config, runs, fresh, told, start, asked)
    except Paused as paused:
        return {"method": str(method), "paused": str(paused)}


def said_by(model: Any, task: Any, env: Any, reward: Any) -> set[str]:
    """Which of the settings with a place of their own in `run` were given."""
    told = {"model": model != "pocket", "task": task is not None or env is not None, "reward": reward is not None}
    return {name for name, given in told.items() if given}


def _start(settings: dict[str, Any]) -> Start:
    """What is said of the start, taken out of the settings."""
    pause = Pause(settings.pop("max_hours", None))
    source, optimizer = str(settings.pop("start_from", "")), bool(settings.pop("optimizer", True))
    return Start(source, optimizer, bool(settings.pop("extend_schedule", False)), pause=pause)


def _no_stages(settings: dict[str, Any]) -> None:
    """A stage of the method is no setting: say where it belongs."""
    stages = {f.name for f in dataclasses.fields(Method)} - {f.name for f in dataclasses.fields(Config)}
    for name in settings:
        if name in stages:
            raise UserError(
                f"{name} is a choice of the method, not a setting; use "
                f'method=pt.find_method("grpo").but({name}={settings[name]!r:.60})'
            )


def _is_plan(name: str) -> bool:
    word = fold(parse(name)[0])
    return word in {p.name for p in parts("plan")} - {p.name for p in parts("method")}


def _measured(loop: Loop, scorer: Any, others: dict[str, Any]) -> dict[str, Any]:
    before = measure(loop.policy, loop.config, loop.method, loop.env, scorer, others)
    loop.run.state.now(score=before.name, before=before.accuracy)
    loop.tell("on_begin", before)
    train(loop)
    if loop.evaluated >= 0 and loop.evaluated == loop.done:
        after = loop.evaluator.score  # type: ignore[union-attr]  # of these very weights
    else:
        after = measure(loop.policy, loop.config, loop.method, loop.env, scorer, others)
    if loop.done >= 0 and loop.config.keep_best and loop.config.eval_every:
        loop.run.keep_best(loop, loop.done, after.accuracy)
    if not ranks().lead:
        loop.finish()
        return {}
    summary = summarise(loop, before, after)
    loop.run.write_summary(summary)
    loop.run.write_held_out(before, after)
    loop.finish()
    loop.tell("on_end", before, after, summary)
    return summary


def summarise(loop: Loop, before: Score, after: Score) -> dict[str, Any]:
    """The summary of a run; time and tokens are sums over all its steps, also those before it was resumed."""
    rows = loop.run.store.series("tokens")
    seconds = sum(value for _, value in loop.run.store.series("seconds", loop.phase))
    silent = sum(getattr(m, "total", 0) for m in loop.monitors)
    best = best_of(loop.run.folder, loop.phase)
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
        "steps_without_learning": silent,
        "unscored_answers": sum(getattr(m, "answers", 0) for m in loop.monitors),
        **({"best": {"step": best.step + 1, after.name: best.score}} if best else {}),
        **({"stopped_early": loop.stopping} if loop.stopping else {}),
        **trace_of(loop.callbacks),
    }


__all__ = ["run", "run_config", "run_plan", "summarise"]
