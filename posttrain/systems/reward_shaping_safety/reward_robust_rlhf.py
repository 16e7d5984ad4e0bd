"""Reward-robust RLHF: PPO on the nominal reward mixed with the worst that an ensemble of reward models says.

Departures: the paper's reward model has several Gaussian heads on one network, and its nominal reward is that of the
surest. Here such heads exist for Python alone, on features of a toy (`GaussianHeads`); a run takes the components of
`--reward` as members and their sum as the nominal reward, so that "a + b" sets a sum beside the least of its parts,
on unlike scales. With one component, as by default (the task's own grade), the mix changes nothing and this is PPO.
lam 0.6 and the KL price 0.02 are this package's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.credit import members, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import shaping
from posttrain.methods.ppo import ppo
from posttrain.rewards.scorers.ensemble import worst_case
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- what answers are worth
# Bayesian reward-model ensemble (BRME, arXiv:2409.15360): heads that also say how sure they are.


class GaussianHeads(nn.Module):
    """K heads on the features of an answer, each a Gaussian over its reward: mu_k = w_k x, sigma_k = exp(v_k x + b_k).

    The w are drawn by identity, so that heads agree where data taught them and differ where it did not.
    """

    def __init__(self, features: int, heads: int, *identity: object, scale: float = 1.0, sigma: float = 1.0) -> None:
        super().__init__()
        draws = rng.torch_generator("brme", *identity)
        self.mean = nn.Parameter(scale * torch.randn(heads, features, generator=draws))
        self.spread = nn.Parameter(torch.zeros(heads, features))
        self.bias = nn.Parameter(torch.full((heads, 1), sigma).log())

    def forward(self, x_BF: Tensor) -> tuple[Tensor, Tensor]:
        """(mu_KB, sigma_KB)."""
        return self.mean @ x_BF.T, (self.spread @ x_BF.T + self.bias).clamp(-8.0, 8.0).exp()


def brme_loss(mu_KB: Tensor, sigma_KB: Tensor, target_B: Tensor, noise_KB: Tensor) -> Tensor:
    """Regression of a reparameterised draw on the score of an ordinary reward model: (mu + sigma noise - target)^2.

    On average it is (mu - target)^2 + sigma^2: sigma falls where the head has data, and stays where it has none.
    """
    return (mu_KB + sigma_KB * noise_KB - target_B) ** 2


def most_confident(mu_KB: Tensor, sigma_KB: Tensor) -> Tensor:
    """The nominal reward: mu of the head with the least sigma, answer by answer."""
    return mu_KB.gather(0, sigma_KB.argmin(0, keepdim=True)).squeeze(0)


def fit_heads(
    heads: GaussianHeads, x_BF: Tensor, target_B: Tensor, steps: int = 200, lr: float = 0.03
) -> GaussianHeads:
    """Full-batch regression on (features, scores); the noise of each step is drawn by identity."""
    optimiser = torch.optim.Adam(heads.parameters(), lr=lr)
    for step in range(steps):
        mu_KB, sigma_KB = heads(x_BF)
        noise_KB = torch.randn(mu_KB.shape, generator=rng.torch_generator("brme noise", step))
        optimiser.zero_grad()
        brme_loss(mu_KB, sigma_KB, target_B, noise_KB).mean(-1).sum().backward()
        optimiser.step()
    return heads.requires_grad_(False)


# ---- what changes the rewards


@shaping(title="Robust mix", paper="arXiv:2409.15360", reads=("reward_BT",))
def robust_mix(batch: Batch, lam: float = 0.6, prefix: str = "") -> Tensor:
    """Robust mix (reward-robust RLHF): the nominal reward, mixed with the worst that any reward model says.

    R = lam r_nominal + (1 - lam) min_k r_k;  lam = 1 trusts, lam = 0 is the worst case
    Nominal: the reward as it is. Members: its components whose names begin with `prefix`; with none, nothing changes.
    """
    if not 0 <= lam <= 1:
        raise UserError(f"lam is {lam}; it is a share between 0 and 1")
    return on_last(lam * batch.returns_B + (1 - lam) * worst_case(members(batch, prefix)), batch)


# ---- the method

reward_robust_rlhf = method(
    ppo.but(
        name="reward-robust-rlhf", title="Reward-robust RLHF", paper="arXiv:2409.15360", doc=__doc__,
        shaping=(robust_mix, kl_in_reward),
    )
)  # fmt: skip
