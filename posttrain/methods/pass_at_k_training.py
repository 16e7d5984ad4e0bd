"""Pass@k training: GRPO's loop with credit for the best of k answers, so that different ways to be right survive."""

from posttrain.advantages.pass_at_k_training import pass_at_k_training as best_of_k
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo

pass_at_k_training = method(
    grpo.but(
        name="pass-at-k-training", title="Pass@k training", paper="arXiv:2508.10751", doc=__doc__,
        advantage=best_of_k, aggregate=token_mean, terms=(), minibatches=4,
    ),
    __file__,
)  # fmt: skip
