"""Kimi k1.5: policy mirror descent: centred rewards, and the squared log-ratio of the answer to where the step began."""

from posttrain.advantages.dr_grpo import dr_grpo as centred
from posttrain.core.method import method
from posttrain.losses.regularisers.squared_log_ratio import squared_log_ratio
from posttrain.methods.reinforce import reinforce
from posttrain.weights.reference import reset

kimi_k1_5 = method(
    reinforce.but(
        name="kimi-k1-5", title="Kimi k1.5", paper="arXiv:2501.12599", doc=__doc__,
        advantage=centred, terms=(squared_log_ratio,), reference=reset.but(every=1), epochs=2, minibatches=2,  # type: ignore[attr-defined]
    ),
    __file__,
)  # fmt: skip
