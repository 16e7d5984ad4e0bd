"""AutoRule: GRPO on the share of extracted rules that an answer keeps, beside a learned reward of less weight.

posttrain run autorule --reward "rule-fraction(rules=['format', 'length']) + 0.3*task"
"""

from posttrain.core.method import method
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

autorule = method(
    grpo.but(
        name="autorule", title="AutoRule", paper="arXiv:2506.15651", doc=__doc__,
        shaping=(kl_in_reward.but(coef=0.01),), terms=(),
    ),
    __file__,
)  # fmt: skip
