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
from posttrain.core.example import COMPONENTS
from posttrain.core.example_heads import HEADS
from posttrain.core.registry import LOSSES, Part
from posttrain.losses.aggregate import UNITS, Totals
from posttrain.losses.objective import objective, unit_of
from posttrain.losses.supervised.sft import sft
from posttrain.weights.batches import units
from tests.package import package_parts

TOKEN_AGGREGATES = [a for a in package_parts("aggregate") if a not in UNITS.values()]
CASES = [
    (part, aggregate)
    for part in package_parts(*LOSSES, "term")
    for aggregate in ([UNITS[unit_of(part)]] if unit_of(part) in UNITS else TOKEN_AGGREGATES)
]
every_case = pytest.mark.parametrize(("part", "aggregate"), CASES, ids=[f"{p.name}-{a.name}" for p, a in CASES])


def value(part: Part, aggregate: Part, batch: Batch, totals: Totals) -> Tensor:
    if part.card.stage == "term":
        return objective(batch, totals, sft, aggregate, [part])[0]
    return objective(batch, totals, part, aggregate)[0]


def joined(batches: list[Batch]) -> Batch:
    """Batches of equal width one below the other; groups and pairs are renumbered."""
    B = len(batches[0].mask_BT)
    names = [*laws.STREAMS, *laws.WHOLE, "mask_BT", "reward_BT", "score_B", "scores_BK", "rating_BK"]
    streams = {name: torch.cat([b[name] for b in batches]) for name in names}
    shifted = {
        name: torch.cat([b[name] + i * shift for i, b in enumerate(batches)])
        for name, shift in (("group_B", 10), ("chosen_P", B), ("rejected_P", B))
    }
    lists = [torch.where(b["ranked_LK"] >= 0, b["ranked_LK"] + i * B, -1) for i, b in enumerate(batches)]
    names = ("length_B", "label_B", "preferred_P", "temperature_B", "topk_id_BTK", *COMPONENTS)
    same = {name: torch.cat([b[name] for b in batches]) for name in names}
    return Batch(**streams, **shifted, ranked_LK=torch.cat(lists), **same, **{name: batches[0][name] for name in HEADS})


def prepared(part: Part, batch: Batch) -> Batch:
    """What a loss has taken from the whole minibatch is in it; lists are there only for those that read them, since they hold rows
    together."""
    batch = batch if "ranked_LK" in part.card.reads else batch.but(ranked_LK=None)
    return part.card.whole(batch, {}, **part.params) if part.card.whole else batch


def cuts(batch: Batch) -> list[list[Tensor]]:
    """Ways to cut a batch: whole, one unit (a pair, a list) a piece, random pieces of uneven size."""
    draw = torch.Generator().manual_seed(3)
    whole = torch.arange(len(batch.mask_BT))
    some = units(batch, whole)
    assert len(some) > 3
    ways = [[whole], some]
    for share in ((0.1, 0.4), (0.4, 0.8), (0.9, 0.95)):
        order = torch.randperm(len(some), generator=draw).tolist()
        at = sorted({max(1, round(x * len(some))) for x in share} | {0, len(some)})
        ways.append([torch.cat([some[i] for i in order[a:b]]) for a, b in zip(at, at[1:], strict=False) if b > a])
    return ways


@every_case
def test_streams_fp64(part: Part, aggregate: Part) -> None:
    batch = prepared(part, joined([laws.example(seed) for seed in range(3)]))
    leaves = {n: batch[n].clone().requires_grad_() for n in (*laws.LEAVES, "head_VD")}
    live, totals = batch.but(**leaves), Totals.of(batch)

    def gradient(pieces: list[Batch]) -> list[Tensor]:
        loss = sum(value(part, aggregate, piece, totals) for piece in pieces)
        grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        return [torch.zeros(()).double() if g is None else g for g in grads]

    whole = gradient([live])
    assert max(float(g.abs().max()) for g in whole) > 1e-4
    for way in cuts(batch):
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
        scores_BK=nn.functional.pad(batch["scores_BK"], (0, 0, 0, rows), value=float("nan")),
        rating_BK=nn.functional.pad(batch["rating_BK"], (0, 0, 0, rows), value=float("nan")),
        group_B=nn.functional.pad(batch["group_B"], (0, rows), value=-1),
        chosen_P=torch.cat([batch["chosen_P"], torch.tensor([B])]),
        rejected_P=torch.cat([batch["rejected_P"], torch.tensor([B + 1])]), length_B=None,
        **{n: nn.functional.pad(x, (0, rows if n.endswith("_B") else 1), value=1.0) for n, x in _others(batch).items()},
        temperature_B=nn.functional.pad(batch["temperature_B"], (0, rows), value=float("nan")),
        topk_id_BTK=nn.functional.pad(batch["topk_id_BTK"], (0, 0, 0, columns, 0, rows), value=-1),
    )  # fmt: skip


def _others(batch: Batch) -> dict[str, Tensor]:
    """Streams of answers and of pairs that no list of names has: labels, strengths, what a loss has taken from the whole."""
    known = {"score_B", "group_B", "length_B", "chosen_P", "rejected_P", "temperature_B"}
    return {n: x for n, x in batch.streams.items() if n.endswith(("_B", "_P")) and n not in known}


class Tiny(nn.Module):
    """An embedding read by three heads: next token, value, score."""

    def __init__(self, V: int = 11, D: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.value, self.score = nn.Linear(D, 1), nn.Linear(D, 1)
        self.narrow, self.small = nn.Linear(D, 2), nn.Linear(2, 3, bias=False)  # of the example's vocabulary of three
        self.scores = nn.Linear(D, 2)

    def forward(self, tokens_BT: Tensor, batch: Batch) -> Batch:
        hidden_BTD = torch.tanh(self.embed(tokens_BT[:, :-1]))
        logits_BTV = self.head(hidden_BTD)
        logp_BTV = logits_BTV.log_softmax(-1)
        mask_BT = batch.mask_BT.unsqueeze(-1)
        mean_BD = (hidden_BTD * mask_BT).sum(1) / mask_BT.sum(1).clamp_min(1)
        return batch.but(
            logp_BT=logp_BTV.gather(-1, tokens_BT[:, 1:, None]).squeeze(-1),
            entropy_BT=-(logp_BTV.exp() * logp_BTV).sum(-1),
            value_BT=self.value(hidden_BTD).squeeze(-1),
            value_BTK=self.value(hidden_BTD),
            value_after_BT=self.value(hidden_BTD).squeeze(-1),
            score_B=self.score(mean_BD).squeeze(-1),
            hidden_BTD=self.narrow(hidden_BTD),
            head_VD=self.small.weight,
            scores_BK=self.scores(mean_BD),
            logz_BT=logits_BTV.logsumexp(-1),
            mixed_logp_BT=logp_BTV.gather(-1, tokens_BT[:, :-1, None]).squeeze(-1),
        )


@every_case
def test_model_fp32(part: Part, aggregate: Part) -> None:
    torch.manual_seed(0)
    model = Tiny()
    batch = joined([laws.example(seed) for seed in range(3)])
    batch = batch.but(
        **{n: x.float() for n, x in batch.streams.items() if x.is_floating_point() and n not in laws.WHOLE}
    )
    B, T = batch.mask_BT.shape
    tokens_BT = torch.randint(0, 11, (B, T + 1))
    with torch.no_grad():  # an old policy and a reference near the model's own, so that every clip regime is met
        logp_BT = model(tokens_BT, batch).logp_BT
        batch = batch.but(old_logp_BT=logp_BT + 0.2 * torch.randn(B, T), ref_logp_BT=logp_BT + 0.2 * torch.randn(B, T))
    batch = prepared(part, batch.but(logp_BT=logp_BT, place_B=torch.arange(B)))
    tokens_BT, B, totals = tokens_BT[batch["place_B"]], len(batch.mask_BT), Totals.of(batch)

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
    for way in cuts(batch):
        torch.testing.assert_close(gradient(way, piece), whole, rtol=0, atol=1e-6 * max(1.0, float(whole.abs().max())))


def test_a_mean_over_the_piece_would_be_caught() -> None:
    """The control: dividing by the piece's own counts is not invariant."""
    batch = joined([laws.example(seed) for seed in range(3)])
    batch = batch.but(ranked_LK=None)
    pieces = [batch.rows(index) for index in cuts(batch)[2]]
    local = sum(value(sft, TOKEN_AGGREGATES[-1], p, Totals.of(p)) for p in pieces) / len(pieces)
    assert abs(float(local - value(sft, TOKEN_AGGREGATES[-1], batch, Totals.of(batch)))) > 1e-3
