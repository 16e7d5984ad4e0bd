"""ProRL: DAPO for very long runs: a wide upper clip, and a small KL to a reference that is renewed whenever progress stalls.

Departures: the paper's authors judge by eye when validation stalls; here the held-out score is measured every 10 steps
(`--eval-every 10`), and when it has not risen in 2 measurements (`--reference "stalled(patience=2)"`) the policy becomes the
reference and the optimiser starts anew, as theirs. They name a KL, not its coefficient (0.001 here; the published settings
of its successor, ProRL v2, have 0.0001, and clip at 0.2 and 0.27). Their many families of tasks, their growing context and
what they change in rewards from run to run are left to the run. Clip 0.2 and 0.4, 16 answers per prompt, temperature 1.2,
refilled groups and 4 updates per batch are the paper's; its 256 prompts per step and its rate, which stays, are
`--prompts 256 --schedule constant`.
"""

from __future__ import annotations

import math
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import Policy
from posttrain.core.registry import reference
from posttrain.losses.policy.dapo import dapo as clip_higher
from posttrain.losses.regularisers.kl import kl
from posttrain.systems.policy_gradient.dapo import dapo
from posttrain.weights.reference import Frozen


@reference(paper="arXiv:2505.24864", system="prorl")
class stalled(Frozen):
    """Stalled (ProRL): when held-out scores no longer rise, the policy becomes the reference and the optimiser starts anew.

    renewed once `patience` evaluations in a row were no better than the best since it was renewed last
    It needs evaluations: --eval-every.
    """

    needs_eval = True

    def __init__(self, patience: int = 2) -> None:
        if patience < 1:
            raise UserError(
                f"patience is {patience}; at least 1 evaluation must be no better before progress has stalled"
            )
        self.patience, self.since = patience, 0
        self.best: float | None = None  # since it was renewed last

    def after_eval(self, policy: Policy, score: float) -> bool:
        """Whether this score made the policy the reference."""
        if math.isnan(score):
            return False
        better = self.best is None or score > self.best
        self.best, self.since = (score, 0) if better else (self.best, self.since + 1)
        if self.since < self.patience:
            return False
        self.renew(policy)
        self.best, self.since = score, 0
        return True

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "since": self.since}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.since = state["best"], int(state["since"])


prorl = method(
    dapo.but(
        name="prorl", title="ProRL", paper="arXiv:2505.24864", doc=__doc__,
        loss=clip_higher.but(low=0.2, high=0.4), shaping=(), terms=(kl.but(coef=1e-3),), minibatches=4,
        reference=stalled,
        settings=(("sampling.temperature", 1.2), ("eval_every", 10)),
    )
)  # fmt: skip
