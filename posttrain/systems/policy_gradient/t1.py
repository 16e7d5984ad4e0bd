"""T1: many answers per prompt, each against the others, an entropy bonus, and a KL to a moving average of the policy.

Departures: the paper starts from SFT on long chains with trial, error and self-check, which must be given as
`--model`; it samples at temperature 1.2 (here 1: `--sampling.temperature 1.2`) and gives degenerate answers a
negative reward, which is left to `--reward "task + repetition"`. Its coefficients are not known here: KL 0.01,
entropy 0.001, decay 0.99 and two updates per batch are this package's. 64 answers per prompt are the paper's.
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
