"""Constrained RLHF: PPO whose reward weights are Lagrange multipliers, so that each component stops at its proxy point.

Departures: the paper has a critic for each component and mixes their credit, weighs the KL by what the multipliers
leave, and finds the proxy points by a search on the true metric; here one critic values the mix, the KL keeps its
price of 0.02, and points must be given: `--shaping "proxy_points(points={'a': 0.4, 'b': 0.7}) + kl_in_reward"` with
components of those names in `--reward`; without points it is refused. The rate 0.1 of the multipliers is this package's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import shaping
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


@shaping(title="Proxy points", paper="arXiv:2310.04373", reads=("reward_BT",))
class proxy_points:
    """Proxy points (constrained RLHF): weigh the components of the reward so that each settles at its proxy point.

    R = sum_i w(mu_i) r_i;  mu_i <- mu_i + lr (point_i - mean r_i), once a batch, after it was weighed
    kind="equal" (xi-PPO): w = tanh, which turns against a component that overshoots. kind="least" (mu-PPO): w = sigmoid,
    which only lets go of it. points: {component: point}; `reward` is the whole reward. The paper has a critic for each of
    N components, mixes credit and weighs the KL by N - sum_i w_i; here one critic values the mix and the KL keeps its price.
    """

    def __init__(self, points: dict[str, float] | None = None, kind: str = "equal", lr: float = 0.1) -> None:
        if kind not in ("equal", "least"):
            raise UserError(f"a proxy point is 'equal' or 'least', not {kind!r}")
        self.points, self.kind, self.lr = points or {}, kind, lr
        self.mu = dict.fromkeys(self.points, 0.0)

    def weight(self, name: str) -> float:
        x = self.mu[name]
        return math.tanh(x) if self.kind == "equal" else 1 / (1 + math.exp(-x))

    def __call__(self, batch: Batch) -> Tensor:
        if not self.points:
            raise UserError(
                "constrained-rlhf holds each component of --reward at its proxy point, and no point is given; write "
                "--shaping \"proxy_points(points={'a': 0.4, 'b': 0.7}) + kl_in_reward\" with the components' names"
            )
        valid_B = batch.valid_B
        mixed_B = torch.zeros_like(batch.mask_BT[:, 0])
        for name, point in self.points.items():
            r_B = torch.where(valid_B, component(batch, name), 0.0)
            mixed_B = mixed_B + self.weight(name) * r_B
            if bool(valid_B.any()):
                self.mu[name] += self.lr * (point - float(r_B.sum() / valid_B.sum()))
        return on_last(mixed_B, batch)

    def state_dict(self) -> dict[str, float]:
        return dict(self.mu)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mu = {name: float(state[name]) for name in self.points}


constrained_rlhf = method(
    ppo.but(
        name="constrained-rlhf", title="Constrained RLHF", paper="arXiv:2310.04373", doc=__doc__,
        shaping=(proxy_points, kl_in_reward),
    )
)  # fmt: skip
