from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import shaping
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward, sampled_kl


@shaping(
    paper="arXiv:1909.08593",
    base="kl_in_reward",
    laws=("free_at_the_reference",),
    reads=("old_logp_BT", "ref_logp_BT", "reward_BT"),
)
class adaptive_kl:  # the registered name of a part is its function's or class's own
    """Adaptive KL: KL in the reward whose price rises while answers are further than target nats from the reference.

    e = clip(KL / target - 1, -0.2, 0.2);  coef <- coef (1 + e n / horizon)
    KL: mean over the n valid answers of the sum over their tokens. This batch pays the old price, the next the new one.
    """

    def __init__(self, coef: float = 0.2, target: float = 6.0, horizon: float = 10_000.0) -> None:
        self.coef, self.target, self.horizon = coef, target, horizon

    def __call__(self, batch: Batch) -> Tensor:
        reward_BT: Tensor = kl_in_reward(batch, coef=self.coef)
        answers = int(batch.valid_B.sum())
        if answers:
            self.update(float(sampled_kl(batch).sum()) / answers, answers)
        return reward_BT

    def update(self, kl: float, answers: int) -> None:
        """Move the price by the proportional rule."""
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.coef *= 1 + error * answers / self.horizon

    def state_dict(self) -> dict[str, float]:
        return {"coef": self.coef}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.coef = float(state["coef"])
