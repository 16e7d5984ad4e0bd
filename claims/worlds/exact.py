"""Exact quantities of tabular policies, by going through every answer or every state: no sampling error."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError

_LIMIT = 200_000


def all_answers(policy: TabularPolicy) -> tuple[Tensor, Tensor]:
    """Every answer the policy can give: letters (N, T), 0 after the end, and which of them are real (N, T)."""
    if policy.V**policy.T > _LIMIT:
        raise UserError(f"{policy.V}^{policy.T} answers are too many to go through; the limit is {_LIMIT}")
    tokens_NT = torch.tensor(list(product(range(policy.V), repeat=policy.T)))
    if policy.end is None:
        return tokens_NT, torch.ones_like(tokens_NT, dtype=torch.bool)
    ends_NT = (tokens_NT == policy.end).cumsum(-1)
    real_NT = (ends_NT - (tokens_NT == policy.end).long()) == 0  # up to and with the first end
    once_N = torch.where(real_NT, 0, tokens_NT).sum(-1) == 0  # of the many tails after an end, the one of zeros
    return tokens_NT[once_N], real_NT[once_N]


@torch.no_grad()
def answer_logp(policy: TabularPolicy) -> Tensor:
    """Log-probability of every answer to every prompt (P, N), in the order of `all_answers`."""
    tokens_NT, real_NT = all_answers(policy)
    out = []
    for p in range(policy.P):
        logp_NTV = policy.logp_all(torch.full((len(tokens_NT),), p), tokens_NT)
        out.append((logp_NTV.gather(-1, tokens_NT.unsqueeze(-1)).squeeze(-1) * real_NT).sum(-1))
    return torch.stack(out)


def expected(policy: TabularPolicy, worth_PN: Tensor) -> Tensor:
    """Expected worth of an answer to each prompt: sum_y pi(y | x) worth(x, y)."""
    return (answer_logp(policy).exp() * worth_PN).sum(-1)


def answer_kl(policy: TabularPolicy, other: TabularPolicy) -> Tensor:
    """KL(pi(. | x) || other(. | x)) over whole answers, for each prompt."""
    logp_PN = answer_logp(policy)
    return (logp_PN.exp() * (logp_PN - answer_logp(other))).sum(-1)


def answer_entropy(policy: TabularPolicy) -> Tensor:
    """Entropy over whole answers, for each prompt, in nats."""
    logp_PN = answer_logp(policy)
    return -(logp_PN.exp() * logp_PN).sum(-1)


def tilted(logp_PN: Tensor, worth_PN: Tensor, beta: float) -> Tensor:
    """The policy no other can beat on E[worth] - beta KL(pi || ref): pi* = ref exp(worth / beta) / Z, as log-probabilities."""
    return torch.log_softmax(logp_PN + worth_PN / beta, -1)
