"""What the settings of a run ask a plan for when answers are compared rather than scored."""

from __future__ import annotations

from posttrain.core.plan import Context
from posttrain.methods.asked import asked_rewards
from posttrain.rewards.runtime.scorer import texts_of
from posttrain.rewards.runtime.spec import function_of
from posttrain.rewards.scorers.pairwise import Judge, by_score, is_judge, one_by_one


def asked_judge(context: Context, k: float = 1.0) -> Judge:
    """--reward FILE.py:FUNCTION of (prompt, a, b) is the judge itself; any other reward r judges by sigmoid(k (r_a - r_b))."""
    file, _, name = context.config.reward.rpartition(":")
    if file.endswith(".py") and "+" not in context.config.reward and is_judge(function_of(file, name)):
        return one_by_one(function_of(file, name))
    scorer = asked_rewards(context)
    return by_score(lambda prompts, texts: texts_of(scorer, prompts, texts), k)
