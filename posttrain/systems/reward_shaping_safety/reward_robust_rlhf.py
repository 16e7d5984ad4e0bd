"""Reward-robust RLHF: PPO on the nominal reward mixed with the worst that a Bayesian ensemble of reward heads says."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.credit import members, on_last
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.registry import scorer, shaping
from posttrain.core.types import Group, Rollout
from posttrain.methods.members import asked_prompts, member
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_pairs
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rewards.scorers.ensemble import worst_case
from posttrain.rewards.scorers.reward_model import RewardModel
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


# ---- heads on a language model


@torch.no_grad()
def last_states(policy: Policy, rollouts: Sequence[Rollout], chunk: int = 32) -> Tensor:
    """(B, D): what the score head of a reward model reads of each answer; NaN where an answer is longer than the window."""
    window = getattr(policy, "window", 0) or math.inf
    fit = [i for i, r in enumerate(rollouts) if len(r.context) + len(r) <= window]
    seen: list[Tensor] = []
    head: nn.Module = policy.score  # type: ignore[attr-defined]
    hook = head.register_forward_pre_hook(lambda module, args: seen.append(args[0].float().cpu()))
    try:
        for i in range(0, len(fit), chunk):
            policy.forward([rollouts[j] for j in fit[i : i + chunk]], ("score_B",))
    finally:
        hook.remove()
    found_BD = torch.cat(seen) if seen else torch.zeros(0, 1)
    out_BD = torch.full((len(rollouts), found_BD.shape[1]), math.nan)
    out_BD[fit] = found_BD
    return out_BD


@scorer(title="Bayesian reward heads", paper="arXiv:2409.15360")
class BayesianHeads(BaseScorer):
    """Bayesian reward heads (BRME): K Gaussian heads on one reward model; the reward is that of the surest (the nominal one).

    The heads are fitted to the model's own scores of written answers, in units of those answers. Components head0, head1 ... are
    the means of all, sigma is that of the surest.
    """

    reported = ("nominal",)

    def __init__(self, policy: Policy, written: Sequence[Rollout], heads: int = 5, seed: int = 0) -> None:
        self.policy = policy
        x_BD, score_B = last_states(policy, written), RewardModel(policy).raw(written)
        read_B = ~(score_B.isnan() | x_BD.isnan().any(-1))
        x_BD, score_B = x_BD[read_B], score_B[read_B]
        if len(x_BD) < 2:
            raise UserError("fewer than two written answers fit into the model's window, so no head can be fitted")
        self.shift_D, self.scale_D = x_BD.mean(0), x_BD.std(0, correction=0).clamp_min(1e-6)
        target_B = (score_B - score_B.mean()) / score_B.std(correction=0).clamp_min(1e-6)
        made = GaussianHeads(x_BD.shape[1], heads, seed, scale=x_BD.shape[1] ** -0.5)
        self.heads = fit_heads(made, self.features(x_BD), target_B)

    def features(self, x_BD: Tensor) -> Tensor:
        return (x_BD - self.shift_D) / self.scale_D

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        mu_KB, sigma_KB = self.heads(self.features(last_states(self.policy, answers_of(groups))))
        nominal_B, sure_B = most_confident(mu_KB, sigma_KB), sigma_KB.min(0).values
        nominal_B[mu_KB.isnan().any(0)] = math.nan
        told = zip(nominal_B.tolist(), sure_B.tolist(), mu_KB.T.tolist(), strict=True)
        return [
            Verdict(x, {"nominal": x, "sigma": sigma, **{f"head{k}": mu for k, mu in enumerate(mus)}})
            for x, sigma, mus in told
        ]


# ---- the plan


def robust_ppo(lam: float = 0.6, beta: float = 0.02, prefix: str = "") -> Method:
    """PPO on lam nominal + (1 - lam) min over the members, less beta KL."""
    return ppo.but(
        name="reward-robust-rlhf", title="Reward-robust RLHF", paper="arXiv:2409.15360", doc=__doc__,
        shaping=(robust_mix.but(lam=lam, prefix=prefix), kl_in_reward.but(coef=beta)),
    )  # fmt: skip


@plan(paper="arXiv:2409.15360", title="Reward-robust RLHF", uses=("task", "pairs"))
def reward_robust_rlhf(
    lam: float = 0.6, heads: int = 5, steps: int = 60, beta: float = 0.02, epochs: float = 3.0, pairs: str = ""
) -> Plan:
    """Reward-robust RLHF: a reward model of preference pairs, Gaussian heads on it, then PPO on the nominal mixed with the worst.

    R = lam r_nominal + (1 - lam) min_k mu_k - beta KL;  r_nominal = mu of the head with the least sigma, answer by answer
    --task holds the preference pairs, or --plan.pairs does, and --task the prompts. The reward model learns from the pairs
    (Bradley-Terry, `epochs` passes); the heads learn to give its scores of the pairs' answers through a draw: (mu + sigma e - s)^2.

    Departures: the paper trains the heads together with their network; here the network is the trained reward model's and stays
    as it is, and the heads are linear in its last state. `--reward` has no place: the reward is learned. The mix 0.6, five
    heads, the KL price 0.02 and three passes are this package's: the paper's summary that was at hand names none. Policy and
    reward model start at `--model`, not at a fine-tuned one.
    """
    if not 0 <= lam <= 1:
        raise UserError(f"lam is {lam}; it is a share between 0 and 1")
    if heads < 1 or steps < 1:
        raise UserError(f"got heads={heads}, steps={steps}; it takes 1 head and 1 step at least")

    def rewards(context: Context) -> BayesianHeads:
        judge, env = context.role("reward-model"), asked_pairs(context, pairs)
        told = [(p, p.info[k]) for p in env.train for k in ("chosen", "rejected")]
        return BayesianHeads(judge, [judge.written(p, text) for p, text in told], heads, context.config.seed)

    judge = member("reward-model", pairs, epochs, lambda c: c.role("start"))
    method, env = robust_ppo(lam, beta, "head"), lambda c: asked_prompts(c, pairs)
    learn = Phase("ppo", method, steps, env, rewards=rewards, reference="start")
    return Plan((Copy("policy", "start"), judge, learn), uses=("task",) if pairs else None)
