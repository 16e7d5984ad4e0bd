"""SAC on the same task as control.py: a replay memory, twin critics with target networks, three objectives from the same rows.

    python -m examples.run off_policy

What you should see: the mean return of held-out episodes of Pendulum-v1 (100 moments, rewards divided by 10) rises from -40 to -15
(seeds 0, 1, 2) in 2,000 steps, 8,400 moments of play; a run in runs/off-policy-0 that was killed goes on bit for bit.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import posttrain as pt
from examples.control import Control, returns
from posttrain.advantages.ones import ones
from posttrain.core.registry import Part, policy_loss
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.policies.gaussian import GaussianPolicy, log_normal, mlp, padded
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
            for p, q in zip(self.slow.parameters(), self.twins.parameters(), strict=True):
                p.data.lerp_(q.data, TAU)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"logp_BT", "q1_BT", "q2_BT", "target_BT", "drawn_q_BT", "drawn_logp_BT", "log_alpha_BT"})

    def drawn(self, state: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(state)
        raw = mean + noise * self.log_std.exp()
        inside = log_normal(raw, mean, self.log_std) - torch.log(1 - torch.tanh(raw) ** 2 + 1e-6)
        return torch.tanh(raw), inside.sum(-1)

    def forward(self, rows: Sequence[Any], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        turns, needs = [r.row for r in rows], set(needs)
        if "next" not in turns[0].observation.streams:
            return super().forward(rows, needs)
        s = {k: torch.cat([t.observation.streams[k] for t in turns]) for k in ("state", "next", "done", "noise")}
        lengths, action = [len(t) for t in turns], torch.tanh(torch.cat([t.actions for t in turns]))
        now, later = s["noise"].chunk(2, -1)
        out = {"logp_BT": torch.zeros(len(action)), "log_alpha_BT": self.log_alpha.expand(len(action))}
        pair = torch.cat([s["state"], action], -1)
        out |= {f"q{i + 1}_BT": twin(pair).squeeze(-1) for i, twin in enumerate(self.twins)}
        mine, out["drawn_logp_BT"] = self.drawn(s["state"], now)
        out["drawn_q_BT"] = torch.minimum(*(q(torch.cat([s["state"], mine], -1)).squeeze(-1) for q in self.twins))
        with torch.no_grad():
            then, logp_N = self.drawn(s["next"], later)
            worth_N = torch.minimum(*(q(torch.cat([s["next"], then], -1)).squeeze(-1) for q in self.slow))
            out["target_BT"] = GAMMA * (1 - s["done"].squeeze(-1)) * (worth_N - self.log_alpha.exp() * logp_N)
        return {k: padded(x, lengths) for k, x in out.items() if k in needs}


@policy_loss(paper="arXiv:1801.01290", reads=("drawn_q_BT", "drawn_logp_BT", "log_alpha_BT"))
def sac_actor(batch: pt.Batch) -> Tensor:
    """SAC actor: raise the smaller critic's value of a fresh action, at a price for certainty. L = alpha log pi(a) - min Q(s, a)"""
    return batch["log_alpha_BT"].exp().detach() * batch["drawn_logp_BT"] - batch["drawn_q_BT"]


@policy_loss(paper="arXiv:1801.01290", reads=("q1_BT", "q2_BT", "target_BT", "reward_BT"))
def sac_critic(batch: pt.Batch) -> Tensor:
    """SAC critics: both regress on the reward and the slow copies' view of what follows. L = 1/2 sum_i (Q_i - r - target)^2"""
    goal = batch["reward_BT"] + batch["target_BT"]
    return 0.5 * ((batch["q1_BT"] - goal) ** 2 + (batch["q2_BT"] - goal) ** 2)


@policy_loss(paper="arXiv:1812.05905", reads=("drawn_logp_BT", "log_alpha_BT"))
def sac_temperature(batch: pt.Batch, entropy: float = -1.0) -> Tensor:
    """SAC temperature: certainty costs more while the entropy is below its goal. L = -log alpha (log pi + entropy)"""
    return -batch["log_alpha_BT"] * (batch["drawn_logp_BT"] + entropy).detach()


LEARNERS: dict[str, Part] = {"critic": sac_critic, "temperature": sac_temperature}
OTHERS = tuple(pt.Objective(r, loss, token_mean, grpo.optimiser, grpo.reference) for r, loss in LEARNERS.items())
sac = grpo.but(name="sac", rollout=sample.but(n=1), advantage=ones, loss=sac_actor, terms=(), others=OTHERS)
sac = sac.but(aggregate=token_mean)


def main(seed: int = 0, small: bool = False, runs: str = "runs") -> dict[str, float]:
    env, policy = Control(), SAC(3, 1, seed=seed)
    before = returns(policy, env, sac)
    config = pt.Config(
        name=f"off-policy-{seed}", steps=700 if small else 2000, prompts=1, lr=3e-3, seed=seed, schedule="constant", warmup=0,
        max_norm=10.0, eval_problems=0, save_every=500, log_rollouts=0,
    )  # fmt: skip
    given: dict[str, Any] = {
        "policy": policy,
        "env": env,
        "scorer": Prescored(),
        "source": partial(ReplaySource, size=128),
    }
    pt.run_config(config, runs, method=sac, **given)
    return {"before": before, "after": returns(policy, env, sac)}
