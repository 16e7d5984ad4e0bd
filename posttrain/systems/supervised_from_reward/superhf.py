"""SuperHF: RAFT held near the start by a KL term: imitate the best of 16 fresh answers, pay for leaving the reference.

Departures: the term that names the method is another one. The authors add 0.35 KL(start || policy), summed over the
vocabulary at each token of the kept answer and clamped at 0. Here 0.35 k2, half the squared log-ratio of the sampled
token, which is the gradient of KL(policy || start) for plain samples, not for the best of 16, and is blind to other
tokens. They train LoRA of rank 4 at 2e-5 with top-p 0.95 and 2 prompts per step; here all weights, no top-p and 16
prompts. A reward model must be given (`--reward runs/NAME`).
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.regularisers.kl import kl
from posttrain.rollouts.sample import sample
from posttrain.systems.supervised_from_reward.raft import raft

superhf = method(
    raft.but(
        name="superhf", title="SuperHF", paper="arXiv:2310.16763", doc=__doc__,
        rollout=sample.but(n=16), terms=(kl.but(coef=0.35, kind="k2"),),
    )
)  # fmt: skip
