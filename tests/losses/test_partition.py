"""Partition invariance: for every loss, term and aggregation the gradient does not depend on how the batch was cut.

Whole, in micro-batches (random ones that keep pairs together), one pair at a time, and with extra columns and rows of
padding that hold garbage. In fp64 by the streams themselves, in fp32 through a small model.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from posttrain.core import laws
from posttrain.core.batch import Batch
from posttrain.core.registry import LOSSES, Part
from posttrain.losses.aggregate import Totals, pair_mean
from posttrain.losses.objective import PAIRED, objective
from posttrain.losses.supervised.sft import sft
from tests.package import package_parts

TOKEN_AGGREGATES = [a for a in package_parts("aggregate") if a.name != pair_mean.name]
CASES = [
    (part, aggregate)
    for part in package_parts(*LOSSES, "term")
    for aggregate in ([pair_mean] if part.card.stage in PAIRED else TOKEN_AGGREGATES)
]
every_case = pytest.mark.parametrize(("part", "aggregate"), CASES, ids=[f"{p.name}-{a.name}" for p, a in CASES])


def value(part: Part, aggregate: Part, batch: Batch, totals: Totals) -> Tensor:
    if part.card.stage == "term":
        return objective(batch, totals, sft, aggregate, [part])[0]
    return objective(batch, totals, part, aggregate)[0]


def joined(batches: list[Batch]) -> Batch:
    """Batches of equal width one below the other; groups and pairs are renumbered."""
    B = len(batches[0].mask_BT)
    names = [*laws.STREAMS, *laws.WHOLE, "mask_BT", "reward_BT", "score_B"]
    streams = {name: torch.cat([b[name] for b in batches]) for name in names}
    shifted = {
        name: torch.cat([b[name] + i * shift for i, b in enumerate(batches)])
        for name, shift in (("group_B", 10), ("chosen_P", B), ("rejected_P", B))
    }
    return Batch(**streams, **shifted, **{"length_B": torch.cat([b["length_B"] for b in batches])})


def cuts(rows: int) -> list[list[Tensor]]:
    """Ways to cut rows (2i, 2i + 1) that are a pair: whole, random pieces of uneven size, one pair a piece."""
    draw = torch.Generator().manual_seed(3)
    pairs = torch.arange(rows).view(-1, 2)
    ways = [[torch.arange(rows)], list(pairs)]
    for sizes in ([1, 4, 7], [5, 5, 2], [11, 1]):
        order = torch.randperm(len(pairs), generator=draw)
        ways.append([pairs[piece].flatten() for piece in order.split(sizes)])
    return ways


@every_case
def test_streams_fp64(part: Part, aggregate: Part) -> None:
    batch = joined([laws.example(seed) for seed in range(3)])
    leaves = {n: batch[n].clone().requires_grad_() for n in laws.LEAVES}
    live, totals = batch.but(**leaves), Totals.of(batch)

    def gradient(pieces: list[Batch]) -> list[Tensor]:
        loss = sum(value(part, aggregate, piece, totals) for piece in pieces)
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return [torch.zeros(()).double() if g is None else g for g in grads]

    whole = gradient([live])
    assert max(float(g.abs().max()) for g in whole) > 1e-4
    for way in cuts(len(batch.mask_BT)):
        for got, expected in zip(gradient([live.rows(index) for index in way]), whole, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    wide = widened(live)
    assert Totals.of(wide) == totals
    for got, expected in zip(gradient([wide]), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def widened(batch: Batch, columns: int = 3, rows: int = 2) -> Batch:
    """The same batch with more padding, full of garbage; the new rows are even a pair."""

    def widen(x_BT: Tensor, fill: float) -> Tensor:
        return nn.functional.pad(x_BT, (*[0] * 2 * (x_BT.dim() - 2), 0, columns, 0, rows), value=fill)

    B = len(batch.mask_BT)
    streams = {n: widen(batch[n], float("inf")) for n in (*laws.STREAMS, *laws.WHOLE)}
    return batch.but(
        **streams, mask_BT=widen(batch.mask_BT, 0.0), reward_BT=widen(batch["reward_BT"], 0.0),
        score_B=nn.functional.pad(batch["score_B"], (0, rows), value=float("nan")),
        group_B=nn.functional.pad(batch["group_B"], (0, rows), value=-1),
        chosen_P=torch.cat([batch["chosen_P"], torch.tensor([B])]),
        rejected_P=torch.cat([batch["rejected_P"], torch.tensor([B + 1])]), length_B=None,
    )  # fmt: skip


class Tiny(nn.Module):
    """An embedding read by three heads: next token, value, score."""

    def __init__(self, V: int = 11, D: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.value, self.score = nn.Linear(D, 1), nn.Linear(D, 1)

    def forward(self, tokens_BT: Tensor, batch: Batch) -> Batch:
        hidden_BTD = torch.tanh(self.embed(tokens_BT[:, :-1]))
        logp_BTV = self.head(hidden_BTD).log_softmax(-1)
        mask_BT = batch.mask_BT.unsqueeze(-1)
        mean_BD = (hidden_BTD * mask_BT).sum(1) / mask_BT.sum(1).clamp_min(1)
        return batch.but(
            logp_BT=logp_BTV.gather(-1, tokens_BT[:, 1:, None]).squeeze(-1),
            entropy_BT=-(logp_BTV.exp() * logp_BTV).sum(-1),
            value_BT=self.value(hidden_BTD).squeeze(-1),
            value_BTK=self.value(hidden_BTD),
            value_after_BT=self.value(hidden_BTD).squeeze(-1),
            score_B=self.score(mean_BD).squeeze(-1),
        )


@every_case
def test_model_fp32(part: Part, aggregate: Part) -> None:
    torch.manual_seed(0)
    model = Tiny()
    batch = joined([laws.example(seed) for seed in range(3)])
    batch = batch.but(**{n: batch[n].float() for n in (*laws.STREAMS, "mask_BT", "reward_BT", "score_B")})
    B, T = batch.mask_BT.shape
    tokens_BT = torch.randint(0, 11, (B, T + 1))
    with torch.no_grad():  # an old policy and a reference near the model's own, so that every clip regime is met
        logp_BT = model(tokens_BT, batch).logp_BT
        batch = batch.but(old_logp_BT=logp_BT + 0.2 * torch.randn(B, T), ref_logp_BT=logp_BT + 0.2 * torch.randn(B, T))
    totals = Totals.of(batch)

    def gradient(way: list[Tensor], step: Callable[[Tensor], Batch]) -> Tensor:
        model.zero_grad()
        for index in way:
            value(part, aggregate, step(index), totals).backward()  # accumulated, as a trainer does
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    def piece(index: Tensor) -> Batch:
        rows = batch.rows(index)
        return model(tokens_BT[index, : rows.mask_BT.shape[1] + 1], rows)

    whole = gradient([torch.arange(B)], lambda _: model(tokens_BT, batch))
    assert whole.abs().max() > 1e-5
    for way in cuts(B):
        torch.testing.assert_close(gradient(way, piece), whole, rtol=0, atol=1e-6 * max(1.0, float(whole.abs().max())))


def test_a_mean_over_the_piece_would_be_caught() -> None:
    """The control: dividing by the piece's own counts is not invariant."""
    batch = joined([laws.example(seed) for seed in range(3)])
    pieces = [batch.rows(index) for index in cuts(len(batch.mask_BT))[2]]
    local = sum(value(sft, TOKEN_AGGREGATES[-1], p, Totals.of(p)) for p in pieces) / len(pieces)
    assert abs(float(local - value(sft, TOKEN_AGGREGATES[-1], batch, Totals.of(batch)))) > 1e-3
