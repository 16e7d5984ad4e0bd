"""Clip-Cov: GRPO without the gradient of the few tokens that cost the most entropy."""

from posttrain.advantages.clip_cov import clip_cov as without_high_covariance
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo

clip_cov = method(
    grpo.but(
        name="clip-cov", title="Clip-Cov", paper="arXiv:2505.22617", doc=__doc__,
        advantage=without_high_covariance, aggregate=token_mean, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
