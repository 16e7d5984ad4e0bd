"""GRPO-lambda: GRPO in which only the groups that are solved best, a fixed share, are paid for being short; the others
learn from right and wrong alone, so that accuracy does not collapse."""

from posttrain.core.method import method
from posttrain.methods.grpo import grpo
from posttrain.rewards.shaping.grpo_lambda import grpo_lambda as switch

grpo_lambda = method(
    grpo.but(name="grpo-lambda", title="GRPO-lambda", paper="arXiv:2505.18086", doc=__doc__, shaping=switch), __file__
)
