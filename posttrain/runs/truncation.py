"""Does the sampler draw from the distribution that is trained? A sampler that cuts off the unlikely tokens shows no gap at all.

Its log-probabilities may be right to the last digit while it never draws a token beyond the nucleus. What gives it away is which
tokens come: where the trainer gives the nucleus a mass m, an honest sampler leaves it with probability 1 - m. For each cut
that a sampler may have by default, the evidence for it grows by log(1 / m) with each token inside, and falls with one outside:

    W <- max(0, W + log((1 - e) / m + e))  inside,   max(0, W + log e)  outside;   found when W > LIMIT

This is Page's CUSUM of the likelihood ratio of "cut" against "as trained": an honest sampler passes LIMIT once in e^LIMIT tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Origin, Rollout
from posttrain.models.layout import Rows, hidden_states
from posttrain.policies.language import LanguagePolicy

LIMIT = 25.0  # e^25 = 7e10 tokens between false alarms, of each cut
_LEAK = 0.02  # e: the share of draws that a sampler with a cut may still make outside, by rounding
_EVERY, _ALWAYS = 8, 4  # after so many steps only every eighth one is looked at
_TOKENS = 512  # tokens looked at in a step
_LOGITS, _LOGITS_GPU = 1 << 22, 1 << 25  # and logits
CUTS: tuple[tuple[str, float], ...] = (
    ("top_p", 0.98), ("top_p", 0.95), ("top_p", 0.9), ("top_p", 0.8), ("top_p", 0.5),
    ("top_k", 50), ("top_k", 20), ("top_k", 5), ("min_p", 0.02), ("min_p", 0.05), ("min_p", 0.1),
)  # fmt: skip


@dataclass
class Truncation:
    """The evidence for each cut so far."""

    evidence: dict[tuple[str, float], float] = field(default_factory=dict)

    def look(self, step: int, groups: list[Group], policy: Any, how: Sampling) -> tuple[str, float] | None:
        """Look at a few answers of a step, before the policy is updated; the cut that explains them, where one does."""
        if not comparable(policy, how) or (step >= _ALWAYS and step % _EVERY):
            return None
        rollouts = some([r for g in groups for r in g.rollouts if drawn(r, step)])
        if not rollouts:
            return None
        was = policy.training
        policy.eval()
        cuts = ratios(*distribution(policy, rollouts))
        policy.train(was)
        return self.add(cuts)

    def add(self, ratios: dict[tuple[str, float], Tensor]) -> tuple[str, float] | None:
        """More tokens: log-likelihood ratios by cut. What is found begins anew, so that it is found again while it lasts."""
        found: list[tuple[float, tuple[str, float]]] = []
        for cut, ratio_N in ratios.items():
            sum_N = torch.cat([torch.tensor([self.evidence.get(cut, 0.0)]).double(), ratio_N]).cumsum(0)
            w_N = sum_N - sum_N.cummin(0).values.clamp(max=0.0)  # w <- max(0, w + x) at each token, in one pass
            best, self.evidence[cut] = float(w_N.max()), float(w_N[-1])
            if best > LIMIT:
                found.append((best, cut))
        if not found:
            return None
        self.evidence = {}
        return max(found)[1]


def comparable(policy: Any, how: Sampling) -> bool:
    """Whether answers are drawn from the whole distribution, by a language model whose logits can be read."""
    whole = how.temperature > 0 and not how.raw_logp and (how.top_k, how.top_p, how.min_p) == (0, 1.0, 0.0)
    plain = isinstance(policy, LanguagePolicy) and type(policy).forward is LanguagePolicy.forward
    return whole and plain and policy.temperature == how.temperature


def drawn(r: Rollout, step: int) -> bool:
    """Drawn by this policy as it is now, and not greedily on purpose."""
    fresh = r.origin is Origin.SAMPLED and r.branch is None and r.versions == (step, step)
    return fresh and not r.info.get("greedy") and bool(r.mask_T.any())


def some(rollouts: list[Rollout]) -> list[Rollout]:
    """A few, spread over the step; which ones does not depend on what they say."""
    stride = max(1, len(rollouts) // 64)
    out, count = [], 0
    for r in rollouts[::stride]:
        if count >= _TOKENS:
            break
        out.append(r)
        count += len(r)
    return out


@torch.no_grad()
def distribution(policy: Any, rollouts: list[Rollout]) -> tuple[Tensor, Tensor]:
    """(probabilities, most likely first; the place of the token that was drawn) at the policy's own actions."""
    laid = Rows.of([r.row for r in rollouts], policy.device)
    h_BTD, _ = hidden_states(policy.model, laid, policy.layout)
    own_BT = torch.zeros_like(laid.real_BT)
    for b, r in enumerate(rollouts):
        own_BT[b, : len(r)] = r.mask_T.to(own_BT.device)
    h_ND, token_N = h_BTD[own_BT & laid.real_BT], laid.actions_BT[own_BT & laid.real_BT]
    vocabulary = int(policy.model.logits(h_ND[:1]).shape[-1])
    n = max(1, min(_TOKENS, (_LOGITS_GPU if h_ND.is_cuda else _LOGITS) // vocabulary))
    p_NV = torch.softmax(policy.model.logits(h_ND[:n]).float() / policy.temperature, -1)
    mine_N1 = p_NV.gather(-1, token_N[:n, None])
    return p_NV.sort(-1, descending=True).values, (p_NV > mine_N1).sum(-1)


def ratios(p_NV: Tensor, place_N: Tensor) -> dict[tuple[str, float], Tensor]:
    """By cut, log P(token | cut) / P(token) with a leak of e; the likelier tokens come first in p_NV."""
    before_NV = p_NV.cumsum(-1) - p_NV
    places_V = torch.arange(p_NV.shape[-1], device=p_NV.device)
    out = {}
    for kind, x in CUTS:
        if kind == "top_p":
            kept_NV = before_NV < x
        elif kind == "top_k":
            kept_NV = (places_V < x).expand_as(p_NV)
        else:
            kept_NV = p_NV >= x * p_NV[:, :1]
        mass_N = (p_NV * kept_NV).sum(-1).clamp(max=1.0)
        inside_N = kept_NV.gather(-1, place_N[:, None]).squeeze(-1)
        log_in_N = torch.log((1 - _LEAK) / mass_N + _LEAK)
        out[kind, x] = torch.where(inside_N, log_in_N, torch.full_like(log_in_N, math.log(_LEAK))).double().cpu()
    return out
