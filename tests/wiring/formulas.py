"""Formulas of the papers a second time, in a few plain lines: credit by answer, and the pull on each token of a pass."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.wiring.trace import Pass, Step, Update


def worth(prompt: Any, text: str) -> float:
    """A reward of 0 and 1 that a random text earns now and then."""
    return float(sum(map(ord, text)) % 3 == 0)


@dataclass
class Rows:
    """The rows of an update: what each earned by the reward itself, their groups, the tokens that are their own."""

    step: Step
    made: Update

    def __post_init__(self) -> None:
        batch = self.made.batch
        self.earned_B = torch.tensor([worth(None, row.text) for row in self.made.rows])
        self.group_B, self.mask_BT, self.old_BT = batch["group_B"], batch["mask_BT"], batch["old_logp_BT"]
        self.length_B = self.mask_BT.sum(-1)

    def by_group(self, f: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """f(what the group earned, the lengths of its answers), for every group."""
        out_B = torch.zeros_like(self.earned_B)
        for g in self.group_B.unique():
            mine = self.group_B == g
            out_B[mine] = f(self.earned_B[mine], self.length_B[mine])
        return out_B

    def less_kl(self, coef: float) -> Tensor:
        """What is left of the reward once the sampled tokens have paid for leaving the reference."""
        return self.earned_B - coef * ((self.old_BT - self.made.batch["ref_logp_BT"]) * self.mask_BT).sum(-1)


# ---- credit of each answer


def whitened(rows: Rows) -> Tensor:
    return rows.by_group(lambda R, _: (R - R.mean()) / (R.std() + 1e-4))


def centred(rows: Rows) -> Tensor:
    return rows.by_group(lambda R, _: R - R.mean())


def batch_std(rows: Rows) -> Tensor:
    return centred(rows) / (rows.earned_B.std() + 1e-4)


def praise_in_batch_std(rows: Rows) -> Tensor:
    return batch_std(rows).clamp_min(0)


def over_mean(rows: Rows) -> Tensor:
    return rows.by_group(lambda R, _: (R - R.mean()) / (R.mean() + 1e-6) if R.mean() > 0 else R * 0)


def by_length(rows: Rows) -> Tensor:
    return rows.by_group(lambda R, n: R - (n * R).sum() / n.sum())


def gpg(rows: Rows) -> Tensor:
    live = rows.by_group(lambda R, _: R * 0 + float(R.max() > R.min())).sum()
    return centred(rows) * len(rows.earned_B) / live.clamp_min(1)


def others(rows: Rows) -> Tensor:
    return rows.by_group(lambda R, _: R - (R.sum() - R) / (len(R) - 1))


def others_less_kl(rows: Rows) -> Tensor:
    rows.earned_B = rows.less_kl(0.03)
    return others(rows)


def best_of_four(rows: Rows) -> Tensor:
    def credit(R: Tensor, _: Tensor) -> Tensor:
        sets = list(itertools.combinations(range(len(R)), 4))
        best = torch.stack([R[list(s)].max() for s in sets])
        own = torch.stack(
            [torch.stack([b for s, b in zip(sets, best, strict=True) if i in s]).mean() for i in range(len(R))]
        )
        return (own - best.mean()) / (best.std(unbiased=False) + 1e-4)

    return rows.by_group(credit)


def above_half(rows: Rows) -> Tensor:
    return rows.earned_B - 0.5


def plain(rows: Rows) -> Tensor:
    return rows.earned_B


def above_greedy(rows: Rows) -> Tensor:
    bar = [worth(None, g.rollouts[-1].text) for g in rows.step.groups]
    return rows.less_kl(0.03) - torch.tensor([bar[g] for g in rows.group_B.tolist()])


def whitened_to_go(rows: Rows) -> Tensor:
    """Of each token: what was still to be earned, less the KL still to be paid, whitened over all tokens."""
    paid_BT = 0.01 * (rows.old_BT - rows.made.batch["ref_logp_BT"]) * rows.mask_BT
    togo_BT = rows.earned_B[:, None] - paid_BT.flip(-1).cumsum(-1).flip(-1)
    own_N = togo_BT[rows.mask_BT > 0]
    return (togo_BT - own_N.mean()) / (own_N.std(unbiased=False) + 1e-8)


# ---- the pull on a token, before the mean


def clipped(r: Tensor, A: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    return torch.where((A > 0) & (r > 1 + high) | (A < 0) & (r < 1 - low), 0.0, r * A)


def ppo(p: Pass, A: Tensor) -> Tensor:
    return clipped(ratio(p), A)


def ratio(p: Pass, to: str = "old_logp_BT") -> Tensor:
    return (p.batch["logp_BT"] - p.batch[to]).exp()


def score(p: Pass, A: Tensor) -> Tensor:
    return A


def dual(p: Pass, A: Tensor) -> Tensor:
    return torch.where((A < 0) & (ratio(p) > 3), 0.0, clipped(ratio(p), A))


def answer_ratio(p: Pass, log: Tensor) -> Tensor:
    """exp of the mean over the answer's own tokens."""
    own_BT = p.batch["mask_BT"]
    return ((log * own_BT).sum(-1) / own_BT.sum(-1).clamp_min(1)).exp()[:, None]


def gspo(p: Pass, A: Tensor) -> Tensor:
    return clipped(answer_ratio(p, ratio(p).log()).expand_as(A), A, 3e-4, 4e-4)


def gmpo(p: Pass, A: Tensor) -> Tensor:
    log = ratio(p).log()
    held = torch.where(A < 0, log.clamp_min(-0.4), log.clamp_max(0.4))
    return torch.where(held == log, answer_ratio(p, held) * A, 0.0)


def sapo(p: Pass, A: Tensor) -> Tensor:
    tau = torch.where(A > 0, 1.0, 1.05)
    return ratio(p) * A / torch.cosh(tau * (ratio(p) - 1) / 2) ** 2


def dppo(p: Pass, A: Tensor) -> Tensor:
    far = (p.batch["logp_BT"].exp() - p.batch["old_logp_BT"].exp()).abs() > 0.15
    return torch.where(far & ((A > 0) & (ratio(p) > 1) | (A < 0) & (ratio(p) < 1)), 0.0, ratio(p) * A)


def mirror(p: Pass, A: Tensor) -> Tensor:
    own_BT = p.batch["mask_BT"]
    return A - 0.1 * ((p.batch["logp_BT"] - p.batch["ref_logp_BT"]) * own_BT).sum(-1, keepdim=True)


def tapered(p: Pass, A: Tensor) -> Tensor:
    whole = ((p.batch["logp_BT"] - p.batch["old_logp_BT"]) * p.batch["mask_BT"]).sum(-1, keepdim=True).exp()
    return torch.where(A < 0, whole.clamp(max=1.0), 1.0) * A


def corrected(weigh: Callable[[Tensor], Tensor], level: str = "token") -> Callable[[Pass, Tensor], Tensor]:
    """PPO near the weights as the step began, weighted by how much likelier these find the token than its sampler did."""

    def pull(p: Pass, A: Tensor) -> Tensor:
        log = (p.batch["ref_logp_BT"] - p.batch["old_logp_BT"]) * p.batch["mask_BT"]
        return weigh((log.sum(-1, keepdim=True) if level == "answer" else log).exp()) * clipped(
            ratio(p, "ref_logp_BT"), A
        )

    return pull


def dist(p: Pass, whose: str = "") -> Tensor:
    """All log-probabilities of each token's place, from the hidden states and the head that the loss got; whose: "ref_" of the reference."""
    logits_BTV = p.batch[f"{whose}hidden_BTD"] @ p.heads[f"{whose}head_VD"].T
    return (logits_BTV / p.batch["temperature_B"].clamp_min(1e-9)[:, None, None]).log_softmax(-1)


def k3(coef: float, p: Pass) -> Tensor:
    return coef * ((p.batch["ref_logp_BT"] - p.batch["logp_BT"]).exp() - 1)


# ---- means


def mean(kind: str, p: Pass) -> Tensor:
    """What a token's pull is multiplied by: 1 / tokens of the pass, 1 / (answers x own length), 1 / answers."""
    own_BT, live = p.batch["mask_BT"], len(p.rows)
    if kind == "tokens":
        return own_BT / own_BT.sum()
    return own_BT / live / (own_BT.sum(-1, keepdim=True).clamp_min(1) if kind == "answers" else 1.0)
