"""ReMax: REINFORCE whose baseline is what the likeliest answer earned: one more answer instead of a critic.

The KL is part of the reward, at RLOO's price; the baseline has none.
"""

from posttrain.core.method import method
from posttrain.methods.reinforce import reinforce
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample_and_greedy import sample_and_greedy
from posttrain.select.greedy_baseline import greedy_baseline

remax = method(
    reinforce.but(
        name="remax", title="ReMax", paper="arXiv:2310.10505", doc=__doc__,
        rollout=sample_and_greedy, select=(greedy_baseline,), shaping=(kl_in_reward.but(coef=0.03),),
    ),
    __file__,
)  # fmt: skip
