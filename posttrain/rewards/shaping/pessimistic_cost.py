from __future__ import annotations

from torch import Tensor

from posttrain.core.registry import shaping
from posttrain.core.types import Batch
from posttrain.evals.safety_test import margin
from posttrain.rewards.process import component, on_last


@shaping(title="Pessimistic cost", paper="arXiv:2506.08266")
class pessimistic_cost:
    """Pessimistic cost (HC-RLHF, step 1): PPO-Lagrangian whose constraint is the bound of the safety test to come.

    R = (r - lam c) / (1 + lam);  U = mean c + inflate s / sqrt(n) t_{1 - delta, n - 1};  lam <- max(0, lam + lr (U - limit))
    n: answers of the future test; inflate: 2 by the Seldonian convention, 0 for Safe RLHF's mean cost. c: the component
    `cost`. This batch is weighed with the old lam.
    """

    def __init__(
        self, limit: float = 0.0, delta: float = 0.05, n: int = 200, inflate: float = 2.0, lr: float = 0.1,
        cost: str = "cost",
    ) -> None:  # fmt: skip
        self.limit, self.delta, self.n, self.inflate, self.lr, self.cost = limit, delta, n, inflate, lr, cost
        self.lam = 0.0

    def __call__(self, batch: Batch) -> Tensor:
        cost_B, live_B, lam = component(batch, self.cost), batch.live_B, self.lam
        self.update(cost_B[live_B].tolist())
        return on_last((batch.returns_B - lam * cost_B) / (1 + lam), batch)

    def update(self, costs: list[float]) -> None:
        """Move the multiplier by what the pessimistic bound exceeds the limit; one answer says nothing of a spread."""
        if len(costs) > 1:
            upper = sum(costs) / len(costs) + self.inflate * margin(costs, self.n, self.delta)
            self.lam = max(0.0, self.lam + self.lr * (upper - self.limit))

    def state_dict(self) -> dict[str, float]:
        return {"lam": self.lam}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.lam = float(state["lam"])
