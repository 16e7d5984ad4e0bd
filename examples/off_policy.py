"""SAC on the same task as control.py: a replay memory, twin critics with target networks, three objectives from the same rows.

    python -m examples.off_policy

What you should see: the mean return of held-out episodes of Pendulum-v1 (100 moments, rewards divided by 10) rises from about
-40 to above -20 in 2,000 steps, 8,400 moments of play; runs/off-policy can be killed at any moment and goes on bit for bit.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import posttrain as pt
from examples.control import Control, returns
from posttrain.advantages.ones import ones
from posttrain.core.registry import policy_loss
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.models.gaussian import GaussianPolicy, log_normal, mlp, padded
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rollouts.replay import ReplaySource
from posttrain.rollouts.sample import sample

GAMMA, TAU = 0.95, 0.02


class SAC(GaussianPolicy):
    """A Gaussian actor squashed by tanh where it is judged, two critics, their slow copies, and the price of certainty."""

    def __init__(self, states: int, actions: int, width: int = 64, seed: int = 0) -> None:
        super().__init__(states, actions, width, seed, log_std=0.0)
        self.twins = nn.ModuleList(mlp(states + actions, width, width, 1, seed=10 + seed + i) for i in (0, 1))
        self.slow = copy.deepcopy(self.twins).requires_grad_(False)
        self.log_alpha = nn.Parameter(torch.tensor(-1.6))

    def parameters_of(self, role: str) -> Iterable[tuple[str, nn.Parameter]]:
        heads = {"policy": ("mean", "log_std"), "critic": ("twins",), "temperature": ("log_alpha",)}[role]
        return [(n, p) for n, p in self.named_parameters() if n.startswith(heads)]

    def after_update(self, role: str) -> None:
        """The targets follow the critics: slow <- (1 - tau) slow + tau twins."""
        if role == "critic":
            with torch.no_grad():
                for p, q in zip(self.slow.parameters(), self.twins.parameters(), strict=True):
                    p.lerp_(q, TAU)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"logp_BT", "q1_BT", "q2_BT", "target_BT", "drawn_q_BT", "drawn_logp_BT", "log_alpha_BT"})

    def drawn(self, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action for each state from given noise, and its log-probability after tanh."""
        mean = self.mean(state)
        raw = mean + noise * self.log_std.exp()
        inside = log_normal(raw, mean, self.log_std) - torch.log(1 - torch.tanh(raw) ** 2 + 1e-6)
        return torch.tanh(raw), inside.sum(-1)

    def forward(self, rows: Sequence[Any], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        turns, needs = [r.row for r in rows], set(needs)
        if "state" not in turns[0].observation.streams or "next" not in turns[0].observation.streams:
            return super().forward(rows, needs)
        s = {k: torch.cat([t.observation.streams[k] for t in turns]) for k in ("state", "next", "done", "noise")}
        lengths, action = [len(t) for t in turns], torch.tanh(torch.cat([t.actions for t in turns]))
        now, later = s["noise"].chunk(2, -1)
        out = {"logp_BT": torch.zeros(len(action)), "log_alpha_BT": self.log_alpha.expand(len(action))}
        pair = torch.cat([s["state"], action], -1)
        out |= {f"q{i + 1}_BT": twin(pair).squeeze(-1) for i, twin in enumerate(self.twins)}
        if "drawn_q_BT" in needs or "drawn_logp_BT" in needs:
            mine, out["drawn_logp_BT"] = self.drawn(s["state"], now)
            both = [twin(torch.cat([s["state"], mine], -1)).squeeze(-1) for twin in self.twins]
            out["drawn_q_BT"] = torch.minimum(*both)
        if "target_BT" in needs:
            with torch.no_grad():
                next_action, next_logp = self.drawn(s["next"], later)
                both = [twin(torch.cat([s["next"], next_action], -1)).squeeze(-1) for twin in self.slow]
                soft = torch.minimum(*both) - self.log_alpha.exp() * next_logp
                out["target_BT"] = GAMMA * (1 - s["done"].squeeze(-1)) * soft
        return {k: padded(x, lengths) for k, x in out.items() if k in needs}


@policy_loss(title="SAC actor", paper="arXiv:1801.01290", reads=("drawn_q_BT", "drawn_logp_BT", "log_alpha_BT"))
def sac_actor(batch: pt.Batch) -> Tensor:
    """SAC actor: raise the smaller critic's value of a fresh action, at a price for certainty. L = alpha log pi(a) - min Q(s, a)"""
    return batch["log_alpha_BT"].exp().detach() * batch["drawn_logp_BT"] - batch["drawn_q_BT"]


@policy_loss(title="SAC critics", paper="arXiv:1801.01290", reads=("q1_BT", "q2_BT", "target_BT", "reward_BT"))
def sac_critic(batch: pt.Batch) -> Tensor:
    """SAC critics: both regress on the reward and the slow copies' view of what follows. L = 1/2 sum_i (Q_i - r - target)^2"""
    goal = batch["reward_BT"] + batch["target_BT"]
    return 0.5 * ((batch["q1_BT"] - goal) ** 2 + (batch["q2_BT"] - goal) ** 2)


@policy_loss(title="SAC temperature", paper="arXiv:1812.05905", reads=("drawn_logp_BT", "log_alpha_BT"))
def sac_temperature(batch: pt.Batch, entropy: float = -1.0) -> Tensor:
    """SAC temperature: certainty costs more while the entropy is below its goal. L = -log alpha (log pi + entropy)"""
    return -batch["log_alpha_BT"] * (batch["drawn_logp_BT"] + entropy).detach()


def objective(role: str, loss: Any) -> pt.Objective:
    return pt.Objective(role, loss, token_mean, grpo.optimiser, grpo.reference)


sac = grpo.but(
    name="sac", rollout=sample.but(n=1), advantage=ones, loss=sac_actor, aggregate=token_mean, terms=(),
    others=(objective("critic", sac_critic), objective("temperature", sac_temperature)),
)  # fmt: skip


def main(seed: int = 0, small: bool = False, runs: str = "runs") -> dict[str, float]:
    """Train; returns the mean held-out return before and after."""
    env, policy = Control(), SAC(3, 1, seed=seed)
    before = returns(policy, env, sac)
    config = pt.Config(steps=1000 if small else 2000, prompts=1, lr=3e-3, warmup=0, max_norm=10.0, seed=seed, schedule="constant",
                       name=f"off-policy-{seed}", eval_problems=0, save_every=500, log_rollouts=0)  # fmt: skip
    pt.run_config(
        config,
        runs,
        fresh=True,
        method=sac,
        policy=policy,
        env=env,
        scorer=Prescored(),
        source=partial(ReplaySource, size=128),
    )
    return {"before": before, "after": returns(policy, env, sac)}


if __name__ == "__main__":
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        print(seed, main(seed))
