"""TOPR: many passes over old answers without a leash: the right ones are imitated, the wrong ones pushed down until rare.

Here the answers are sampled each step and used four times; learn from a log with `--rollout logged --task log.jsonl`.
"""

from posttrain.advantages.baseline import baseline
from posttrain.core.method import method
from posttrain.losses.policy.topr import topr as tapered
from posttrain.methods.reinforce import reinforce

topr = method(
    reinforce.but(
        name="topr", title="TOPR", paper="arXiv:2503.14286", doc=__doc__,
        advantage=baseline, loss=tapered, epochs=4, minibatches=2,
    ),
    __file__,
)  # fmt: skip
