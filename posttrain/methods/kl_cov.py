"""KL-Cov: GRPO without a clip, and a KL penalty on the few tokens that cost the most entropy."""

from posttrain.advantages.kl_cov import kl_cov as marked
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.kl_cov import kl_cov as held_back
from posttrain.methods.grpo import grpo

kl_cov = method(
    grpo.but(
        name="kl-cov", title="KL-Cov", paper="arXiv:2505.22617", doc=__doc__,
        advantage=marked, loss=held_back, aggregate=token_mean, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
