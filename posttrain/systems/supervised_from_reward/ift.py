"""Intuitive fine-tuning: imitate an answer while reading, in part, one's own guess of it, and let early tokens answer for later errors.

first pass, without gradient: g_t = argmax pi(. | x, y_<t);  second pass reads (1 - lambda) E(y_t) + lambda E(g_t) in place of y_t
CE_t = -log pi(y_t) of the second pass;  w_t = sum_{k >= t} gamma^(k-t) CE_k, scaled to a mean of 1 over the answer
L = mean over an answer's tokens of w_t CE_t, then over answers; gradients flow through w as well
The state at a token so holds what the policy would have said, and its weight the loss that follows from there, from demonstrations alone: no reward, no pairs, no
reference. `--rollout "intuition(mix=0.1)"` sets lambda, `--loss "ift(gamma=0.9)"` gamma. No gradient reaches the input embeddings, in either pass; with lambda = gamma = 0 this is SFT
by answers with frozen input embeddings.

Departures: the authors' code is followed: lambda 0.2, gamma 0.95, weights that carry gradient, embeddings from a copy that is renewed after every update, which is the
model's own table without gradient (a tied head still moves it). They train 3 epochs of 512 answers at 5e-7 with a cosine; here steps, rate and batch are `sft`'s
(`--steps`, `--prompts`, `--lr`). Their schedules and disturbances of lambda, off by default, are not here, nor other ways to propagate. Rows are padded in the second pass
whatever `--layout` is, and weights that are divided over several GPUs were not tried.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout, supervised_loss
from posttrain.core.types import Group
from posttrain.losses.aggregate import sequence_mean
from posttrain.methods.sft import sft
from posttrain.policies.guessed import MIX
from posttrain.rollouts.written import demonstrations

PAPER = "arXiv:2405.11870"


@rollout(
    name="intuition", title="Intuition (IFT)", paper=PAPER, system="ift", base="demonstrations", data="demonstrations"
)
def intuition(ask: RolloutRequest, mix: float = 0.2) -> list[Group]:
    """Intuition (IFT): demonstrations of which, when they are learned, a share `mix` is read as the policy's own guess of each token."""
    if not 0 <= mix <= 1:
        raise UserError(f"mix is {mix:g}; it is the share of the policy's own guess in what it reads, from 0 to 1")
    groups = demonstrations(ask)
    for g in groups:
        for r in g.rollouts:
            r.turns = [replace(t, streams_T={**t.streams_T, MIX: mix * t.mask_T.float()}) for t in r.turns]
    return groups


@supervised_loss(
    name="ift", title="Intuitive fine-tuning", paper=PAPER, base="sft", system="ift", reads=("mixed_logp_BT",)
)
def propagated(batch: Batch, gamma: float = 0.95) -> Tensor:
    """Intuitive fine-tuning: the loss of a token counts as much as the losses from there on, discounted; gradients flow through that too.

    L_t = w_t CE_t;  w_t = |y| c_t / sum_k c_k, c_t = CE_t + gamma c_{t+1};  gamma = 0: w_t = 1
    """
    own_BT = batch.mask_BT > 0
    loss_BT = torch.where(own_BT, -batch["mixed_logp_BT"], 0.0)
    if gamma == 0:
        return loss_BT
    ahead_B, found = torch.zeros_like(loss_BT[:, 0]), []
    for t in reversed(range(loss_BT.shape[1])):
        ahead_B = loss_BT[:, t] + gamma * ahead_B
        found.append(ahead_B)
    weight_BT = torch.where(own_BT, torch.stack(found[::-1], 1), 0.0)
    scale_B = batch.lengths_B / weight_BT.sum(-1).clamp_min(1e-9)
    return scale_B.unsqueeze(-1) * weight_BT * loss_BT


ift = method(
    sft.but(
        name="ift", title="Intuitive fine-tuning", paper=PAPER, doc=__doc__,
        rollout=intuition, loss=propagated, aggregate=sequence_mean,
    )
)  # fmt: skip
