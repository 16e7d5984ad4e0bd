"""SuperHF: RAFT held near the start by a KL term: imitate the best of 16 fresh answers, pay for leaving the reference."""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.regularisers.kl import kl
from posttrain.rollouts.sample import sample
from posttrain.systems.supervised_from_reward.raft import raft

superhf = method(
    raft.but(
        name="superhf", title="SuperHF", paper="arXiv:2310.16763", doc=__doc__,
        rollout=sample.but(n=16), terms=(kl.but(coef=0.35, kind="k2"),),  # k2: the gradient of KL(pi || reference)
    )
)  # fmt: skip
