"""What is measured while a minibatch is learned from: sums over its pieces, and streams that rollouts keep to be looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.turn import Turn
from posttrain.losses.aggregate import valid_pairs
from posttrain.losses.preference.margin import sequence_logp


@dataclass
class Tally:
    """Sums over the pieces of a minibatch, reported as means over the policy's own actions."""

    loss: float = 0.0
    count: float = 0.0
    gap: float = 0.0
    worst: float = 0.0  # the largest gap of a single action, with its sign
    clipped: float = 0.0
    moved: float = 0.0
    extra: dict[str, float] = field(default_factory=dict)
    pairs: float = 0.0
    paired: dict[str, float] = field(default_factory=dict)  # sums over preference pairs

    @torch.no_grad()
    def add(self, loss: float, b: Batch) -> tuple[int, int] | None:
        """Add a piece; the place of the largest gap so far, where it is in this one."""
        place = None
        self.loss += loss
        n = float(b.mask_BT.sum())
        self.count += n
        if "old_logp_BT" in b and "logp_BT" in b:
            sampled_BT = b.mask_BT * (~b["written_B"]).unsqueeze(-1) if "written_B" in b else b.mask_BT
            delta_BT = (b.logp_BT - b["old_logp_BT"]) * sampled_BT  # what others wrote has no sampler to differ from
            self.gap += float(delta_BT.abs().sum())
            at = int(delta_BT.abs().argmax()) if delta_BT.numel() else 0
            if delta_BT.numel() and float(delta_BT.flatten()[at].abs()) > abs(self.worst):
                self.worst, place = float(delta_BT.flatten()[at]), divmod(at, delta_BT.shape[1])
            ratio_BT = delta_BT.exp()
            self.clipped += float(((ratio_BT - 1).abs() > 0.2).float().mul(b.mask_BT).sum())
            self.moved += float((ratio_BT - 1 - delta_BT).sum())  # 0 outside the mask
        if "ref_logp_BT" in b:
            delta_BT = (b["ref_logp_BT"] - b.logp_BT) * b.mask_BT
            self.extra["kl"] = self.extra.get("kl", 0.0) + float((delta_BT.exp() - 1 - delta_BT).sum())
        if "entropy_BT" in b:
            self.extra["entropy"] = self.extra.get("entropy", 0.0) + float((b["entropy_BT"] * b.mask_BT).sum())
        if "value_BT" in b and "return_BT" in b:
            square = ((b["value_BT"] - b["return_BT"]) ** 2 * b.mask_BT).sum()
            self.extra["value_error"] = self.extra.get("value_error", 0.0) + float(square)
        return place

    def take(self, piece: Piece, rows: Sequence[Turn]) -> tuple[Turn, int, float] | None:
        """Add what was measured of a piece, wherever that was, and let its rows keep their streams; where the largest gap so far is, if it is
        in this piece: row, action, gap."""
        one = piece.tally
        for name in ("loss", "count", "gap", "clipped", "moved", "pairs"):
            setattr(self, name, getattr(self, name) + getattr(one, name))
        for mine, theirs in ((self.extra, one.extra), (self.paired, one.paired)):
            for name, x in theirs.items():
                mine[name] = mine.get(name, 0.0) + x
        kept = [rows[i] for i in piece.index.tolist()]
        for name, x_BT in piece.streams.items():
            for row, x_T in zip(kept, x_BT.unbind(), strict=True):
                row.streams_T[name] = x_T[: len(row)]
        if abs(one.worst) <= abs(self.worst) or piece.place is None:
            return None
        self.worst = one.worst
        return kept[piece.place[0]], piece.place[1], one.worst

    def report(self) -> dict[str, float]:
        n = max(self.count, 1.0)
        means = {k: v / n for k, v in self.extra.items()}
        means |= {k: v / max(self.pairs, 1.0) for k, v in self.paired.items()}
        shares = {"logp_gap": self.gap / n, "clip_fraction": self.clipped / n, "approx_kl": self.moved / n}
        return {"loss": self.loss} | shares | {"logp_gap_max": abs(self.worst)} | means


@dataclass
class Piece:
    """What is known of one piece of a minibatch after its pass."""

    index: Tensor  # its rows
    tally: Tally
    place: tuple[int, int] | None  # of its largest gap: row of the piece, action
    streams: dict[str, Tensor]  # that its rows keep

    @staticmethod
    @torch.no_grad()
    def of(index: Tensor, loss: float, b: Batch, keep: bool, beta: float | None = None) -> Piece:
        """keep: its rows keep what is known of their actions, to be looked at. (A row of several turns is a copy of them, so what it keeps
        is not stored.) beta: of a loss that compares pairs, whose implicit rewards are measured."""
        tally = Tally()
        place = tally.add(loss, b)
        if beta is not None and "chosen_P" in b and "logp_BT" in b:
            tally.pairs, tally.paired = implicit_rewards(b, beta)
        return Piece(index, tally, place, looked_at(b) if keep and "old_logp_BT" in b and "logp_BT" in b else {})


def implicit_rewards(b: Batch, beta: float) -> tuple[float, dict[str, float]]:
    """How many live pairs there are, and sums over them: log pi of both answers, their implicit rewards, the margin, who is ahead.

    r = beta (log pi(y) - log ref(y)), without a reference beta log pi(y); the names are those of TRL
    """
    live_P = valid_pairs(b)
    logp_B = sequence_logp(b.logp_BT.detach(), b)
    ref = b.get("ref_logp_BT")
    reward_B = beta * (logp_B if ref is None else logp_B - sequence_logp(ref, b))
    chosen_P, rejected_P = b["chosen_P"], b["rejected_P"]
    found = {
        "logps/chosen": logp_B[chosen_P],
        "logps/rejected": logp_B[rejected_P],
        "rewards/chosen": reward_B[chosen_P],
        "rewards/rejected": reward_B[rejected_P],
        "rewards/margins": reward_B[chosen_P] - reward_B[rejected_P],
        "rewards/accuracies": (reward_B[chosen_P] > reward_B[rejected_P]).float(),
    }
    return float(live_P.sum()), {k: float(torch.where(live_P, x, 0.0).sum()) for k, x in found.items()}


def looked_at(b: Batch) -> dict[str, Tensor]:
    """Of each action: the ratio of the trainer's probability to the sampler's, and where they are known the entropy, the KL to the
    reference (k3 = exp(d) - 1 - d, d = ref_logp - logp, whose mean is the metric `kl`) and the critic's value before the update."""
    kept = {"ratio": (b.logp_BT.detach() - b["old_logp_BT"]).exp()}
    if "entropy_BT" in b:
        kept["entropy"] = b["entropy_BT"].detach()
    if "ref_logp_BT" in b:
        delta_BT = b["ref_logp_BT"] - b.logp_BT.detach()
        kept["kl"] = delta_BT.exp() - 1 - delta_BT
    for name in ("old_value_BT", "value_BT"):
        if name in b and "value" not in kept:
            kept["value"] = b[name].detach()
    return kept
