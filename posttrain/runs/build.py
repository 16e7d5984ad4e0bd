"""From settings to the live parts of a run: the environment, the scorer, the policy, the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.loop import Loop
from posttrain.core.method import Method
from posttrain.core.protocols import Environment, Policy, Scorer
from posttrain.environments.mapped import with_system_message
from posttrain.evals.accuracy import Score, answers, graded, mean_reward, score_of
from posttrain.evals.accuracy import held_out as held_out_prompts
from posttrain.evals.ranking import ranking
from posttrain.models.lora import add_lora
from posttrain.policies.load import load_model
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.spec import build_scorer, task_scorer
from posttrain.rollouts.sources import LocalSource
from posttrain.runs import saved as saved  # so that a reward may name a run
from posttrain.runs.guard import Guard
from posttrain.runs.silence import Silence
from posttrain.runs.threads import Busy
from posttrain.weights.learner import Learner


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


def environment(config: Config, method: Method) -> Environment:
    """The task; for a method that learns from written pairs, the pairs of that name or file; from a log, the log."""
    from posttrain.environments.task import log_task, pair_task, task

    kind = method.rollout.card.data
    options = columns(config) | {"stream": config.stream or None}
    if kind == "pairs":
        env = pair_task(config.task, data=config.data or None, **options)
    elif kind == "logs":
        env = log_task(config.task, **options)
    else:
        env = task(config.task, level=config.level, think=config.think, data=config.data or None, **options)
    return with_system_message(env, config.system) if config.system else env


def columns(config: Config) -> dict[str, str]:
    """field -> column, those that the settings name."""
    return {k: v for k in ("question", "answer", "chosen", "rejected") if (v := getattr(config, k))}


def scorer_of(config: Config, method: Method, env: Environment) -> Scorer:
    """The scorer of a run; written and logged answers come with their rewards."""
    data = method.rollout.card.data
    if data in ("demonstrations", "pairs", "steps"):
        return Prescored()
    if data == "logs" and not config.reward and getattr(env, "rewarded", False):
        return Prescored()
    if not config.reward and env.opens:
        return Prescored()  # the episode gives the rewards of its turns
    if not config.reward and not env.graded:
        raise UserError(
            f"{env.name} has no gold answers, so it cannot grade itself; say what is good with --reward NAME "
            "(posttrain list --stage reward), or with a function of yours: --reward mine.py:function"
        )
    scorer: Scorer = build_scorer(config.reward, env, config.reward_timeout, config.device)
    return scorer


def measure(
    policy: Policy, config: Config, method: Method, env: Environment, scorer: Scorer,
    others: Mapping[str, Policy] | None = None,
) -> Score:  # fmt: skip
    """On held-out problems: accuracy; for written pairs, how often the preferred answer is ranked higher; for prompts
    without gold answers, the run's own reward."""
    if method.rollout.card.data == "pairs":
        return ranking(policy, env.test[: config.eval_problems])  # type: ignore[attr-defined]
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


def held_out(found: Score) -> dict[str, float]:
    """As a metric of a step; the training reward has the name `reward`, so the held-out one gets another."""
    return {"accuracy" if found.name == "accuracy" else f"held_out_{found.name}": found.accuracy}


def load_policy(config: Config) -> Any:
    policy = load_model(config.model, config.device or None, config.dtype, config.bits)
    policy.temperature = config.sampling.temperature or 1.0
    policy.layout = config.layout
    return add_lora(policy, config.lora, seed=config.seed) if config.lora else policy


def build_loop(config: Config, method: Method, policy: Policy, pieces: Pieces) -> Loop:
    """The live parts of a method around a policy."""
    policies = {"policy": policy, **pieces.others}
    env, scorer, curriculum = pieces.env, pieces.scorer, method.prompts.live()
    how = (config.sampling, config.prompts, config.seed)
    source = pieces.source(policies, env, method.rollout, scorer, curriculum, how)
    return Loop(
        config=config,
        method=method,
        env=env,
        learners=build_learners(config, method, policies),
        source=source,
        run=pieces.run,
        phase=pieces.phase,
        select=[p.live() for p in method.select],
        shaping=[p.live() for p in method.shaping],
        callbacks=list(pieces.callbacks),
        evaluator=(lambda p: held_out(measure(p, config, method, env, scorer, pieces.others)))
        if pieces.evaluated
        else None,
        monitors=[Guard(), Silence(), Busy()],
    )


def build_learners(config: Config, method: Method, policies: Mapping[str, Policy]) -> dict[str, Learner]:
    """One learner per objective, by role; a role without a policy of its own is a part of the first."""
    decay = config.steps if config.schedule == "linear" else 0
    out = {}
    for i, goal in enumerate(method.objectives):
        policy = policies.get(goal.role) or policies["policy"]
        lr = config.lr if config.lr is not None else suggested_lr(policy, method)
        settings = (config.seed, lr, config.warmup, config.max_norm, config.micro_tokens, decay)
        out[goal.role] = Learner(policy, method, *settings, objective=goal if i else None)
    return out


def suggested_lr(policy: Policy, method: Method) -> float:
    """A learning rate that suits the size: 2e-4 for the embedded model, 8e-6 at 135 M, 1e-6 at 2 B parameters.

    3e-4 / millions^(3/4); preference losses move whole sequences at once and take a third of it.
    """
    millions = sum(p.numel() for p in policy.parameters()) / 1e6
    base: float = 3e-4 / max(1.0, millions) ** 0.75
    if any(n.endswith("lora_a") for n, _ in policy.named_parameters()):
        base *= 10  # adapters start at no difference and have few directions to move in
    return base / 3 if method.loss.card.stage == "preference_loss" else base
