"""LUSPO: GSPO with each answer's loss times its length, so that length neither dilutes nor buys an answer's weight.

1/B sum_b |y_b| min(s A, clip(s) A): GSPO's tokens summed instead of averaged.

Departures: clip 2e-3 below and 2.5e-3 above were taken for the paper's, whose section on settings and whose code could not be read
to check it (GSPO's are 3e-4 and 4e-4); 8 answers per prompt and 4 updates per batch are this package's.
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.aggregate import sequence_sum
from posttrain.systems.policy_gradient.gspo import gspo

luspo = method(
    gspo.but(
        name="luspo", title="LUSPO", paper="arXiv:2602.05261", doc=__doc__,
        loss=gspo.loss.but(low=2e-3, high=2.5e-3), aggregate=sequence_sum,
    )
)  # fmt: skip
