"""From settings to the live parts of a run: the environment, the scorer, the policy, the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.config import Config, followed
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.method import Method
from posttrain.core.pause import Pause
from posttrain.core.protocols import Environment, Policy, Scorer
from posttrain.core.ranks import ranks
from posttrain.environments.conversions import KINDS
from posttrain.environments.mapped import with_prefill, with_system_message
from posttrain.environments.tooled import Tooled
from posttrain.evals.accuracy import Score, answers, graded, mean_reward, score_of
from posttrain.evals.accuracy import held_out as held_out_prompts
from posttrain.evals.ranking import ranked_right
from posttrain.models.four_bit import quantize
from posttrain.models.lora import TARGETS, adapters_of, merge_adapters, merged_state
from posttrain.policies.load import load_model
from posttrain.policies.peft_folder import adapted, base_of
from posttrain.rewards.runtime.scorer import Prescored, Unpaid
from posttrain.rewards.scorers.spec import build_scorer, task_scorer
from posttrain.rollouts.sources import LocalSource
from posttrain.runs import saved as saved  # so that a reward may name a run
from posttrain.runs.critics import critic_for
from posttrain.runs.guard import Guard
from posttrain.runs.known_rows import know_reference
from posttrain.runs.limited import limited
from posttrain.runs.monitored import Monitored
from posttrain.runs.rate import RateProbe, suggested_lr
from posttrain.runs.replies import kept_by
from posttrain.runs.short import Short
from posttrain.runs.silence import Silence
from posttrain.runs.threads import Busy
from posttrain.runs.tool_files import with_named_tools
from posttrain.runs.trained import Trained, find_trained, keep_wanted, load_trained, refuse_directions
from posttrain.runs.unscored import Unscored
from posttrain.sandbox.row_tests import has_tests
from posttrain.weights.learner import Learner
from posttrain.weights.parallel import ExactSums, Local


@dataclass
class Pieces:
    """What a loop is built from, besides settings and method."""

    env: Environment
    scorer: Scorer
    run: Any
    phase: str = "train"
    others: Mapping[str, Policy] = field(default_factory=dict)  # policies of roles besides the first
    callbacks: Sequence[Any] = ()
    source: Callable[..., Any] = LocalSource  # made as LocalSource is
    evaluated: bool = True
    pause: Pause = field(default_factory=Pause)


def environment(config: Config, method: Method) -> Environment:
    """The task; for a method that learns from preferences, those of that name or file; from a log, the log."""
    from posttrain.environments.task import log_task, pair_task

    kind = method.rollout.card.data
    options = columns(config) | {"stream": config.stream or None}
    if kind == "logs":
        return said_first(log_task(config.task, **options), config)
    if kind not in KINDS:
        return asked_environment(config)
    return said_first(pair_task(config.task, data=config.data or None, kind=kind, **options), config)


def said_first(env: Environment, config: Config) -> Environment:
    """The environment with the system message, the prefill and the tools of the settings."""
    env = with_system_message(env, config.system) if config.system else env
    env = with_prefill(env, config.prefill) if config.prefill else env
    return limited(with_named_tools(env, config.tools, config.reward) if config.tools else env, config)


def asked_environment(config: Config) -> Environment:
    """The task of the settings."""
    from posttrain.environments.task import task

    options = columns(config) | {"stream": config.stream or None}
    env = task(config.task, level=config.level, think=config.think, data=config.data or None, **options)
    return said_first(env, config)


def columns(config: Config) -> dict[str, str]:
    """field -> column, those that the settings name."""
    return {k: v for k in ("question", "answer", "chosen", "rejected") if (v := getattr(config, k))}


def scorer_of(config: Config, method: Method, env: Environment) -> Scorer:
    """The scorer of a run; written and logged answers come with their rewards."""
    data = method.rollout.card.data
    if data in ("demonstrations", "steps", *KINDS):
        return Prescored()
    if data == "logs" and not config.reward and getattr(env, "rewarded", False):
        return Prescored()
    if not config.reward and env.opens and not (isinstance(env, Tooled) and not env.graded):
        return Prescored()  # the episode gives the rewards of its turns
    if data == "logs" and not config.reward and not env.graded:
        raise UserError(
            f"{env.name} is read as a log, and its answers come without rewards; give a column reward, or score them with --reward NAME; "
            f'to learn from questions with gold answers, sample: --rollout "sample(n={method.rollout.defaults().get("n") or 8})"'
        )
    if not config.reward and not env.graded and unpaid(method):
        return Unpaid()
    if not config.reward and not env.graded:
        if has_tests(env.prompt(0).info):
            raise UserError(
                f"{env.name} has no gold answers, but its rows come with tests; run them with --reward code"
            )
        raise UserError(
            f"{env.name} has no gold answers, so it cannot grade itself; say what is good with --reward NAME "
            "(posttrain list --stage reward), or with a function of yours: --reward mine.py:function"
        )
    scorer: Scorer = build_scorer(config.reward, env, config.reward_timeout, config.device)
    return scorer


def unpaid(method: Method) -> bool:
    """Whether rewards change nothing in what a method learns: no part reads one, and none is chosen by."""
    return not method.select and not any(n == "reward_BT" or n.startswith("reward:") for n in method.reads)


def measure(
    policy: Policy, config: Config, method: Method, env: Environment, scorer: Scorer,
    others: Mapping[str, Policy] | None = None,
) -> Score:  # fmt: skip
    """On held-out problems: accuracy; for written preferences, how often the preferred answer is ranked higher; for prompts
    without gold answers, the run's own reward."""
    if (kind := method.rollout.card.data) in KINDS:
        return ranked_right(policy, env.test[: config.eval_problems], kind)  # type: ignore[attr-defined]
    if isinstance(scorer, Prescored) and not env.graded and not env.opens:
        return score_of([], "reward")  # demonstrations alone: nothing can score an answer of the policy
    if env.opens:
        return mean_reward(
            {"policy": policy, **(others or {})}, env, config.eval_problems, config.sampling, scorer, method.rollout
        )
    if env.graded:
        prompts = held_out_prompts(env, config.eval_problems, "test")
        made = answers(policy, env, prompts, config.sampling, rollout=at_test(method, env))
        return graded(made, task_scorer(env, config.reward_timeout), "accuracy")
    return mean_reward(policy, env, config.eval_problems, config.sampling, scorer)


def at_test(method: Method, env: Environment) -> Any:
    """The rollout part, where it is also used at test time and not only in training."""
    return method.rollout if method.rollout.card.at_test or env.opens else None


class HeldOut:
    """Measures a policy on held-out problems; the last score is kept, so that the end of a run need not measure it twice."""

    score: Score

    def __init__(self, measure: Callable[[Policy], Score]) -> None:
        self.measure = measure

    def __call__(self, policy: Policy) -> dict[str, float]:
        self.score = self.measure(policy)
        return held_out(self.score)


def held_out(found: Score) -> dict[str, float]:
    """As a metric of a step; the training reward has the name `reward`, so the held-out one gets another."""
    return {"accuracy" if found.name == "accuracy" else f"held_out_{found.name}": found.accuracy}


def load_policy(config: Config) -> Any:
    """The policy that a run begins with; `model` may be another run, whose adapters are merged into its weights."""
    which = find_trained(config.model)
    if which is None:
        policy = load_model(config.model, config.device or None, config.dtype, config.bits)
    else:
        policy = merged(which, config)
    policy.temperature = config.sampling.temperature or 1.0
    policy.layout, policy.thinking = config.layout, config.think
    return adapted(policy, config)


def merged(which: Trained, config: Config) -> Any:
    """The weights of a run as a model without adapters, on the device and in the precision that the settings ask for."""
    policy, was = load_trained(which, load_policy, config.device, config.dtype)
    refuse_directions(which, config.system)
    if was.bits:
        plain = load_model(base_of(was.model), config.device or None, config.dtype)
        plain.model.load_state_dict(merged_state(policy.model), strict=False)
        policy = plain
    elif adapters_of(policy.model):
        merge_adapters(policy.model)
    if config.bits:
        quantize(policy.model, TARGETS, policy.device)
    return policy


def build_loop(config: Config, method: Method, policy: Policy, pieces: Pieces) -> Loop:
    """The live parts of a method around a policy."""
    if pieces.source is LocalSource and (config.sampler != "local" or config.lag or config.shards > 1):
        raise UserError(
            "here answers are sampled by this process, step by step; --sampler, --lag and --shards are for posttrain run, so leave them away"
        )
    if config.engine and config.sampler == "local" and getattr(policy, "outside", None) is None:
        raise UserError(
            f"here answers are sampled by posttrain's own engine; --engine {config.engine} is for posttrain run"
        )
    method = method.within(followed(config))
    keep_wanted(pieces.run, policy)
    policies = {"policy": policy, **pieces.others}
    env, scorer, curriculum = pieces.env, pieces.scorer, method.prompts.live()
    how, probe = (config.sampling, config.prompts, config.seed), RateProbe()
    source = pieces.source(playing(policies, method), env, method.rollout, scorer, curriculum, how)
    kept = kept_by(source, env, pieces.run, pieces.phase)
    loop = Loop(
        config=config,
        method=method,
        env=env,
        learners=build_learners(config, method, policies),
        source=source,
        run=pieces.run,
        phase=pieces.phase,
        select=[p.live() for p in method.select],
        shaping=[p.live() for p in method.shaping],
        callbacks=[
            *(pieces.callbacks if ranks().lead else ()),
            probe,
            *([source] if hasattr(source, "on_checkpoint") else []),
            *kept,
        ],
        evaluator=HeldOut(lambda p: measure(p, config, method, env, scorer, pieces.others))
        if pieces.evaluated
        else None,
        monitors=[
            Guard(),
            Silence(),
            Busy(),
            probe,
            *([Short()] if method.rounds > 1 else []),
            Monitored(),
            Unscored(),
        ],
        pause=pieces.pause,
    )
    know_reference(loop)
    return loop


def playing(policies: Mapping[str, Policy], method: Method) -> dict[str, Policy]:
    """The policies that answer; one that learns from another's answers (a reward model that is trained online) does not."""
    watching = {o.role for o in method.others if o.rows != o.role}
    return {role: p for role, p in policies.items() if role not in watching}


def build_learners(config: Config, method: Method, policies: Mapping[str, Policy]) -> dict[str, Learner]:
    """One learner per objective, by role; a role without a policy of its own is a part of the first."""
    parallel = parallel_of(config)
    decay = 0 if config.schedule == "constant" else config.steps
    shape = config.schedule if decay else "linear"
    out = {}
    for i, goal in enumerate(method.objectives):
        policy = policies.get(goal.role) or policies["policy"]
        lr = config.lr if config.lr is not None else suggested_lr(policy)
        settings = (
            config.seed,
            lr * goal.pace,
            config.warmup,
            goal.max_norm or config.max_norm,
            config.micro_tokens,
            decay,
        )
        if config.min_lr > lr:
            raise UserError(f"min_lr is {config.min_lr:g}, more than the learning rate {lr:g} that it is the least of")
        out[goal.role] = Learner(
            policy, method, *settings, objective=goal if i else None, schedule=shape, min_lr=config.min_lr,
            critic=None if i else critic_for(config, method, policy), parallel=parallel,
        )  # fmt: skip
    return out


def parallel_of(config: Config) -> Local:
    """How an update is divided among the processes of this run: the whole model on each with exact sums, or rows of it."""
    here = ranks()
    if config.exact_sums:
        return ExactSums(here)
    if not hasattr(here, "gather_saving"):
        return Local()
    from posttrain.weights.sharded import Sharded

    return Sharded(here, config.context_parallel)
