"""OREAL: imitate right answers, blame wrong ones by their leave-one-out share, both weighed token by token by a reward
model that learned from outcomes which tokens matter; held by a light KL.

The token-level reward model is the critic's network here. Of 16 answers a prompt it keeps one right and one wrong: were
there more of one kind, every token would speak for it. The paper also asks hard prompts more often and lets the reward
model warm up for ten steps; those are left to the run.
"""

from posttrain.advantages.oreal import oreal as token_weighted
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.reinforce import reinforce
from posttrain.losses.regularisers.kl import kl
from posttrain.losses.regularisers.token_outcome import token_outcome
from posttrain.methods.grpo import grpo
from posttrain.rollouts.sample import sample
from posttrain.select.one_of_each import one_of_each

oreal = method(
    grpo.but(
        name="oreal", title="OREAL", paper="arXiv:2502.06781", doc=__doc__,
        rollout=sample.but(n=16), select=(one_of_each,), advantage=token_weighted, loss=reinforce, aggregate=token_mean,
        terms=(token_outcome, kl.but(coef=0.01)),
    ),
    __file__,
)  # fmt: skip
