"""Ensembles by hand: three members, two answers."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.rewards.scorers import ensemble

SCORES_KB = torch.tensor([[1.0, 4.0], [2.0, 4.0], [6.0, 4.0]])


def test_by_hand():
    # answer 0: scores 1 2 6: mean 3, median 2, min 1, variance ((-2)^2 + (-1)^2 + 3^2) / 3 = 14/3
    # answer 1: all members say 4: every way says 4
    assert ensemble.mean(SCORES_KB).tolist() == [3.0, 4.0]
    assert ensemble.median(SCORES_KB).tolist() == [2.0, 4.0]
    assert ensemble.worst_case(SCORES_KB).tolist() == [1.0, 4.0]
    torch.testing.assert_close(ensemble.uncertainty_weighted(SCORES_KB), torch.tensor([3 - 0.5 * 14 / 3, 4.0]))
    torch.testing.assert_close(
        ensemble.uncertainty_weighted(SCORES_KB, coef=0.1), torch.tensor([3 - 0.1 * 14 / 3, 4.0])
    )
    torch.testing.assert_close(ensemble.mean_minus_std(SCORES_KB), torch.tensor([3 - (14 / 3) ** 0.5, 4.0]))


def test_median_of_an_even_number():
    # 1 2 6 9: the mean of the two in the middle, (2 + 6) / 2 = 4
    assert ensemble.median(torch.tensor([[9.0], [1.0], [6.0], [2.0]])).tolist() == [4.0]


def test_standardise_by_hand():
    # member 0: 0 2 -> mean 1, std 1 -> -1 1; member 1: 10 30 -> mean 20, std 10 -> -1 1; member 2 constant -> 0 0
    z_KB = ensemble.standardise(torch.tensor([[0.0, 2.0], [10.0, 30.0], [5.0, 5.0]]))
    torch.testing.assert_close(z_KB, torch.tensor([[-1.0, 1.0], [-1.0, 1.0], [0.0, 0.0]]))


def test_standardise_with_the_statistics_of_a_reference_set():
    stats = ensemble.statistics(torch.tensor([[0.0, 2.0]]))  # mean 1, std 1
    torch.testing.assert_close(ensemble.standardise(torch.tensor([[4.0]]), stats), torch.tensor([[3.0]]))


def test_a_members_scale_does_not_matter():
    """r_k -> a_k r_k + b_k, a_k > 0, leaves the combined reward as it was."""
    scores_KB = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    moved_KB = scores_KB * torch.tensor([[1.0], [10.0], [0.1], [3.0], [7.0]]) + torch.arange(5.0)[:, None]
    for how in ensemble.COMBINE:
        torch.testing.assert_close(
            ensemble.combine(scores_KB, how), ensemble.combine(moved_KB, how), atol=1e-4, rtol=1e-4
        )


def test_disagreement_costs():
    """Two answers with the same mean: the one that all agree on wins under every cautious way, and ties under mean."""
    scores_KB = torch.tensor([[0.0, -2.0], [0.0, 2.0]])
    for how in ("worst_case", "uncertainty_weighted", "mean_minus_std"):
        agreed, disputed = ensemble.COMBINE[how](scores_KB).tolist()
        assert agreed > disputed, how
    assert ensemble.mean(scores_KB).tolist() == [0.0, 0.0]


def test_errors():
    with pytest.raises(UserError, match="did you mean 'median'"):
        ensemble.combine(SCORES_KB, "medain")
    with pytest.raises(UserError, match=r"\(members, answers\)"):
        ensemble.combine(torch.zeros(3))
