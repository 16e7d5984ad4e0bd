"""What a method of pairs reports: log-probabilities and implicit rewards of both answers, by the names that TRL has for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.weights.optimisers import rmsprop
from posttrain.weights.tally import Piece, Tally, implicit_rewards
from tests.wiring.spies import traced


def batch(**more: torch.Tensor) -> Batch:
    """Two pairs, rows 0 > 1 and 2 > 3; the last answer has one token."""
    logp = torch.tensor([[-1.0, -2.0], [-3.0, -1.0], [-0.5, -0.5], [-4.0, -9.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    rows = {"chosen_P": torch.tensor([0, 2]), "rejected_P": torch.tensor([1, 3])}
    return Batch(logp_BT=logp, mask_BT=mask, **rows, **more)


def test_implicit_rewards_of_pairs() -> None:
    # log pi: -3, -4, -1, -4; log ref: -2, -4.5, -2, -3; log ratio: -1, 0.5, 1, -1; beta 0.1: -0.1, 0.05, 0.1, -0.1
    ref = torch.tensor([[-1.0, -1.0], [-4.0, -0.5], [-1.0, -1.0], [-3.0, -7.0]])
    n, found = implicit_rewards(batch(ref_logp_BT=ref), 0.1)
    assert n == 2 and found == {
        "logps/chosen": pytest.approx(-4.0), "logps/rejected": pytest.approx(-8.0),
        "rewards/chosen": pytest.approx(0.0, abs=1e-6), "rewards/rejected": pytest.approx(-0.05, abs=1e-6),
        "rewards/margins": pytest.approx(0.05, abs=1e-6), "rewards/accuracies": 1.0,
    }  # fmt: skip
    # without a reference r = beta log pi: -0.3 against -0.4, -0.1 against -0.4
    found = implicit_rewards(batch(), 0.1)[1]
    assert found["rewards/margins"] == pytest.approx(0.4) and found["rewards/accuracies"] == 2.0


def test_a_pair_with_a_dead_answer_does_not_count_and_pieces_add_up() -> None:
    whole = batch()
    dead = whole.but(mask_BT=whole.mask_BT * torch.tensor([[1.0], [1.0], [1.0], [0.0]]))
    assert implicit_rewards(dead, 1.0)[0] == 1.0
    tally = Tally()
    for some in ([0, 1], [2, 3]):
        tally.take(Piece.of(torch.tensor(some), 0.0, whole.rows(torch.tensor(some)), False, 1.0), [None] * 4)  # type: ignore[list-item]
    assert tally.report()["logps/chosen"] == pytest.approx(-2.0) and tally.report()["rewards/margins"] == pytest.approx(
        2.0
    )


class Seen:
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.metrics.append(metrics)


def test_dpo_reports_the_likelihood_of_what_was_chosen() -> None:
    seen = Seen()
    trace = traced("dpo", prompts=4, lr=0.02, steps=3, callbacks=(seen,))
    for made, told in zip(trace.updates, seen.metrics, strict=True):
        (only,) = made.passes
        mask, one, two = made.batch["mask_BT"], made.batch["chosen_P"], made.batch["rejected_P"]
        logp = (only.batch["logp_BT"] * mask).sum(-1)
        reward = 0.1 * (logp - (made.batch["ref_logp_BT"] * mask).sum(-1))
        assert told["logps/chosen"] == pytest.approx(float(logp[one].mean()), rel=1e-4)
        assert told["rewards/rejected"] == pytest.approx(float(reward[two].mean()), rel=1e-3, abs=1e-5)
        assert told["rewards/margins"] == pytest.approx(float((reward[one] - reward[two]).mean()), rel=1e-3, abs=1e-5)
        assert told["rewards/accuracies"] == pytest.approx(float((reward[one] > reward[two]).float().mean()))
    assert seen.metrics[0]["rewards/margins"] == pytest.approx(0.0, abs=1e-5) != seen.metrics[2]["rewards/margins"]


def test_methods_without_pairs_report_none() -> None:
    for name in ("sft", "reward-model"):
        seen = Seen()
        traced(name, steps=1, callbacks=(seen,))
        assert not [k for k in seen.metrics[0] if k.startswith(("rewards/", "logps/"))]


@pytest.mark.derived("optimiser/rmsprop")
def test_rmsprop_divides_by_the_root_of_the_mean_square() -> None:
    # g = 2, alpha = 0.99: v = 0.01 x 4 = 0.04, step = lr g / sqrt(v) = 0.1 x 2 / 0.2 = 1: 3 -> 2
    # then g = 1: v = 0.99 x 0.04 + 0.01 = 0.0496, step = 0.1 / 0.222711 = 0.449013
    p = torch.nn.Parameter(torch.tensor([3.0]))
    optimiser = rmsprop([("p", p)], lr=0.1)
    for grad, want in ((2.0, 2.0), (1.0, 1.550987)):
        p.grad = torch.tensor([grad])
        optimiser.step()
        torch.testing.assert_close(p.item(), want, atol=1e-5, rtol=0)
