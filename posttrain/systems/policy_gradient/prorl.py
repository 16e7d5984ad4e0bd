"""ProRL: DAPO for very long runs: a wide upper clip, and a small KL to a reference that is renewed whenever it holds back.

Departures: the paper renews reference and optimiser by hand when validation stalls; here the reference alone, every
50 steps, and so never in a default run of 40. It samples at temperature 1.2 (here 1: `--sampling.temperature 1.2`)
and refills groups of equals, which are only dropped here; answers that were cut off are masked. It names a KL, not
its coefficient (0.001 here). Its many families of tasks and its growing context are left to the run. Clip 0.2 and 0.4
and 16 answers per prompt are the paper's.
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.policy.dapo import dapo as clip_higher
from posttrain.losses.regularisers.kl import kl
from posttrain.rollouts.sample import sample
from posttrain.systems.policy_gradient.dapo import dapo
from posttrain.weights.reference import reset

prorl = method(
    dapo.but(
        name="prorl", title="ProRL", paper="arXiv:2505.24864", doc=__doc__,
        rollout=sample.but(n=16), loss=clip_higher.but(low=0.2, high=0.4), terms=(kl.but(coef=1e-3),),
        reference=reset.but(every=50),  # type: ignore[attr-defined]
    )
)  # fmt: skip
