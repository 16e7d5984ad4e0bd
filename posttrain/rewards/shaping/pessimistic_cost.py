from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.registry import shaping
from posttrain.evals.safety_test import margin


@shaping(title="Pessimistic cost", paper="arXiv:2506.08266")
class pessimistic_cost:
    """Pessimistic cost (HC-RLHF, step 1): PPO-Lagrangian whose constraint is the bound of the safety test to come.

    R = (r - lam c) / (1 + lam);  lam <- max(0, lam + lr (U - limit));  q(m) = s / sqrt(m) t_{1 - delta, m - 1}
    U = mean c + own q(batch) + inflate q(n): what this batch's own mean may hide, and what the test of n answers will add
    own, inflate: 4 and 2 in the authors' runs, on windows of 256 costs; 0 and 0 is Safe RLHF's mean cost. c: the
    component `cost`. This batch is weighed with the old lam. The authors step log lam and leave out the 1 + lam.
    """

    def __init__(
        self, limit: float = 0.0, delta: float = 0.05, n: int = 200, inflate: float = 2.0, own: float = 1.0,
        lr: float = 0.1, cost: str = "cost",
    ) -> None:  # fmt: skip
        self.limit, self.delta, self.n, self.inflate, self.own = limit, delta, n, inflate, own
        self.lr, self.cost, self.lam = lr, cost, 0.0

    def __call__(self, batch: Batch) -> Tensor:
        cost_B, valid_B, lam = component(batch, self.cost), batch.valid_B, self.lam
        self.update(cost_B[valid_B].tolist())
        return on_last((batch.returns_B - lam * cost_B) / (1 + lam), batch)

    def update(self, costs: list[float]) -> None:
        """Move the multiplier by what the pessimistic bound exceeds the limit; one answer says nothing of a spread."""
        if len(costs) > 1:
            own, test = (margin(costs, m, self.delta) for m in (len(costs), self.n))
            upper = sum(costs) / len(costs) + self.own * own + self.inflate * test
            self.lam = max(0.0, self.lam + self.lr * (upper - self.limit))

    def state_dict(self) -> dict[str, float]:
        return {"lam": self.lam}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.lam = float(state["lam"])
