"""Clip-Cov and KL-Cov: a few tokens, whose likelihood and credit rise together, eat a policy's entropy; the one drops
their gradient, the other holds them back."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens
from posttrain.advantages.grpo import grpo as group_relative
from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import advantage, policy_loss
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo

# ---- who gets the credit


@advantage(
    name="clip_cov",
    title="Clip-Cov",
    paper="arXiv:2505.22617",
    base="grpo",
    laws=("shift_invariant", "scale_invariant"),
    reads=("group_B", "old_logp_BT", "reward_BT"),
)
def without_high_covariance(batch: Batch, ratio: float = 2e-4, low: float = 1.0, high: float = 5.0) -> Tensor:
    """Clip-Cov: GRPO's credit without the few tokens whose likelihood and credit rise together most: they eat the entropy.

    cov_t = (old_logp_t - mean)(A_t - mean), means over all tokens of the step;  A_t = 0, hence no gradient, for
    ratio of the tokens (1 at least) among those with low <= cov <= high
    The paper draws them at random within the bounds, from the live policy at each update; here the largest are taken,
    from the sampler's log-probabilities, once a step.
    """
    adv_BT: Tensor = group_relative(batch)
    cov_BT = covariance(batch["old_logp_BT"], adv_BT, batch.mask_BT)
    inside_BT = (batch.mask_BT > 0) & (cov_BT >= low) & (cov_BT <= high)
    return torch.where(largest(cov_BT, inside_BT, ratio * float(batch.mask_BT.sum())), 0.0, adv_BT)


def covariance(logp_BT: Tensor, adv_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Each token's share of the covariance of log-probability and credit over the mask; 0 outside it."""
    keep_BT = mask_BT > 0
    centred = [x - torch.where(keep_BT, x, 0.0).sum() / keep_BT.sum().clamp_min(1) for x in (logp_BT, adv_BT)]
    return torch.where(keep_BT, centred[0] * centred[1], 0.0)


def largest(x_BT: Tensor, among_BT: Tensor, count: float) -> Tensor:
    """Where the `count` largest values (1 at least; more where they tie) among the marked ones are."""
    found = x_BT[among_BT]
    if not found.numel():
        return torch.zeros_like(among_BT)
    return among_BT & (x_BT >= found.topk(min(max(int(count), 1), found.numel())).values[-1])


@advantage(
    name="kl_cov",
    title="KL-Cov",
    paper="arXiv:2505.22617",
    base="clip_cov",
    laws=("shift_invariant",),
    reads=("group_B", "old_logp_BT", "reward_BT"),
    provides=("return_BT", "mark_BT"),
)
def mark_high_covariance(batch: Batch, ratio: float = 2e-3) -> tuple[Tensor, Tensor, Tensor]:
    """KL-Cov: GRPO's credit, and a mark on the few tokens whose likelihood and credit rise together most.

    mark_t = 1 for the `ratio` of tokens (1 at least) of largest cov_t, as in `clip_cov`; the loss `kl_cov` holds them back
    The paper marks anew at each update; here once a step. Also returns R, which a method without critic does not read.
    """
    adv_BT: Tensor = group_relative(batch)
    cov_BT = covariance(batch["old_logp_BT"], adv_BT, batch.mask_BT)
    mark_BT = largest(cov_BT, batch.mask_BT > 0, ratio * float(batch.mask_BT.sum()))
    return adv_BT, broadcast_to_tokens(batch.returns_B, batch), mark_BT.to(adv_BT.dtype)


# ---- what is minimised


@policy_loss(
    name="kl_cov",
    title="KL-Cov",
    paper="arXiv:2505.22617",
    base="ppo",
    laws=("on_policy_is_reinforce",),
    reads=("adv_BT", "mark_BT", "old_logp_BT"),
)
def penalised_marks(batch: Batch, coef: float = 1.0) -> Tensor:
    """KL-Cov: no clip; the tokens that the advantage `kl_cov` marked pay for every step away from the sampler.

    L = -r A + coef mark |logp - old_logp|;  with no marks in the batch nobody pays
    """
    log_ratio_BT = batch.logp_BT - batch["old_logp_BT"]
    mark_BT = batch["mark_BT"] if "mark_BT" in batch else torch.zeros_like(log_ratio_BT)
    return coef * mark_BT * log_ratio_BT.abs() - torch.exp(log_ratio_BT) * batch["adv_BT"]


# ---- the methods

clip_cov = method(
    grpo.but(
        name="clip-cov", title="Clip-Cov", paper="arXiv:2505.22617",
        doc="""Clip-Cov: GRPO without the gradient of the few tokens that cost the most entropy.

Departures: the paper draws the tokens at random within the bounds, from the live policy at every update; here those
of largest covariance are taken, once a step, from the sampler's log-probabilities. The share 2e-4, the bounds 1 and 5
and no KL are the paper's; 8 answers per prompt and 4 updates per batch are this package's.
""",
        advantage=without_high_covariance, aggregate=token_mean, terms=(), minibatches=4,
    )
)  # fmt: skip

kl_cov = method(
    grpo.but(
        name="kl-cov", title="KL-Cov", paper="arXiv:2505.22617",
        doc="""KL-Cov: GRPO without a clip, and a KL penalty on the few tokens that cost the most entropy.

Departures: the paper marks tokens anew at every update, here once a step. The share 2e-3 and the coefficient 1 are
the paper's for its 7B model; for 32B it marks 2e-4: use `--advantage "kl_cov(ratio=2e-4)"`. 8 answers per prompt and
4 updates per batch are this package's.
""",
        advantage=mark_high_covariance, loss=penalised_marks, aggregate=token_mean, terms=(), minibatches=4,
    )
)  # fmt: skip
