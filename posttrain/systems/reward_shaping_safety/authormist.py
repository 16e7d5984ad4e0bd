"""External scorer as reward: GRPO on what a service over HTTP says of each answer, held near the start by the KL.

The neutral mechanism of AuthorMist, for any scoring service (readability, style, toxicity) that you may call:
posttrain run authormist --reward "http-scorer(url='http://localhost:8000/score')"

Departures: only the neutral mechanism is here, with a scorer of yours; the paper's service, its texts and its check
of the meaning are not. A scorer must be named: without `--reward` the task's own grade pays, and no warning is given.
KL 0.001 is in the paper's range.
"""

from __future__ import annotations

from posttrain.core.method import method
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo

authormist = method(
    grpo.but(
        name="authormist", title="External scorer as reward (AuthorMist)", paper="arXiv:2503.08716", doc=__doc__,
        terms=(kl.but(coef=0.001, kind="k3"),),
    )
)  # fmt: skip
