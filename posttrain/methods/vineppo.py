"""VinePPO: PPO without a critic: the worth of a state is what a few fresh answers from it earn."""

from posttrain.advantages.dense import dense
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.rollouts.vine import vine
from posttrain.select.vine_values import vine_values

vineppo = method(
    grpo.but(
        name="vineppo", title="VinePPO", paper="arXiv:2410.01679", doc=__doc__,
        rollout=vine, select=(vine_values,), advantage=dense, aggregate=token_mean,
    ),
    __file__,
)  # fmt: skip
