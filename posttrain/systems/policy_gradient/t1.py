"""T1: many answers per prompt, each against the others, an entropy bonus, and a KL to a moving average of the policy.

The paper starts from SFT on long chains with trial and error, samples 64 answers at temperature 1.2 and gives degenerate ones
a negative reward (`--reward "task + repetition"`); its coefficients are not known here.
"""

from __future__ import annotations

from posttrain.advantages.rloo import rloo as leave_one_out
from posttrain.core.method import method
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.entropy import entropy
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.rollouts.sample import sample
from posttrain.weights.reference import ema

t1 = method(
    grpo.but(
        name="t1", title="T1", paper="arXiv:2501.11651", doc=__doc__,
        rollout=sample.but(n=64), advantage=leave_one_out, aggregate=token_mean, minibatches=2,
        terms=(kl.but(coef=0.01), entropy.but(coef=0.001)), reference=ema.but(decay=0.99),  # type: ignore[attr-defined]
    )
)  # fmt: skip
