"""Debate reward: the task's reward mixed with how often an action wins a debate about it, so that it can be justified.

aux: what a debate said, a function around rewards/judges/debate.py
posttrain run debate-reward --reward "task + 0*mine.py:aux" --shaping "blend(phi=(0, 0.5, 0.5)) + kl_in_reward"
"""

from posttrain.core.method import method
from posttrain.core.registry import Part
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.blend import blend
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


def mixed(lam: float) -> Part:
    """R = (1 - lam) r_task + lam r_debate: the blend with the debate as component `aux`."""
    return blend.but(phi=(0.0, 1 - lam, lam))  # type: ignore[attr-defined, no-any-return]


debate_reward = method(
    ppo.but(
        name="debate-reward", title="Debate reward", paper="arXiv:2402.15826", doc=__doc__,
        shaping=(mixed(0.0), kl_in_reward),
    ),
    __file__,
)  # fmt: skip
