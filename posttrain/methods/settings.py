"""What the settings of a run ask a plan for: its task, what says how good answers are, who compares them."""

from __future__ import annotations

from typing import Any

from posttrain.core.plan import Context
from posttrain.environments.mapped import with_prefill
from posttrain.environments.task import task
from posttrain.rewards.runtime.scorer import texts_of
from posttrain.rewards.scorers.pairwise import Judge, by_score, is_judge, one_by_one
from posttrain.rewards.scorers.spec import build_scorer, function_of
from posttrain.runs import saved as saved  # so that a reward may name a run


def asked_task(context: Context) -> Any:
    """The task of the settings, with their prefill."""
    c = context.config
    env = task(c.task, level=c.level, think=c.think, data=c.data or None)
    return with_prefill(env, c.prefill) if c.prefill else env


def asked_rewards(context: Context) -> Any:
    """The reward of the settings; the task's own grade where they name none."""
    c = context.config
    return build_scorer(c.reward, asked_task(context), c.reward_timeout, c.device)


def asked_judge(context: Context, k: float = 1.0) -> Judge:
    """--reward FILE.py:FUNCTION of (prompt, a, b) is the judge itself; any other reward r judges by sigmoid(k (r_a - r_b))."""
    file, _, name = context.config.reward.rpartition(":")
    if file.endswith(".py") and "+" not in context.config.reward and is_judge(function_of(file, name)):
        return one_by_one(function_of(file, name))
    scorer = asked_rewards(context)
    return by_score(lambda prompts, texts: texts_of(scorer, prompts, texts), k)
