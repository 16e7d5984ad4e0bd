"""RAFT: sample, keep each prompt's best answer, imitate it; supervised learning on one's own best."""

from posttrain.core.method import method
from posttrain.losses.policy.raft import raft as raft_loss
from posttrain.methods.sft import sft
from posttrain.rollouts.sample import sample
from posttrain.select.best_of import best_of

raft = method(
    sft.but(
        name="raft", title="RAFT", paper="arXiv:2304.06767", doc=__doc__,
        rollout=sample.but(n=8), select=(best_of,), loss=raft_loss,
    ),
    __file__,
)  # fmt: skip
