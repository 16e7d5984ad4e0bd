"""How often a check is called shown when the true mean is exactly its margin: at most 3%, for every seed count in use."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from posttrain.evals.intervals import interval, paired, student

TRIALS = 20_000  # the standard error of a rate of 3% is 0.12%
SEEDS = (5, 6, 8, 10, 12, 14, 16, 20)


def beta(a: float, b: float, *shape: int) -> Tensor:
    return torch.distributions.Beta(torch.tensor(a).double(), torch.tensor(b).double()).sample(shape)


def counted(chance: Tensor, problems: int = 100) -> Tensor:
    """An accuracy over so many problems: ties, and bunched below 1 where the chance is high."""
    return torch.distributions.Binomial(problems, chance).sample() / problems


# differences whose true mean is 0, the worst direction last: a long tail below makes a lucky sample look sure of itself
WORLDS = {
    "normal": lambda *n: torch.randn(*n).double(),
    "uniform": lambda *n: torch.rand(*n).double() - 0.5,
    "two accuracies": lambda *n: counted(beta(9, 1, *n)) - counted(beta(5, 5, *n)) - 0.4,
    "tail above": lambda *n: beta(1, 5, *n) - 1 / 6,
    "below 1 by a little": lambda *n: counted(torch.full(n, 0.97).double()) - 0.97,
    "Beta(8, 2), skewness -0.8": lambda *n: beta(8, 2, *n) - 0.8,
    "Beta(5, 1), skewness -1.2": lambda *n: beta(5, 1, *n) - 5 / 6,
}


def quantile(n: int) -> float:
    """How many standard errors the interval of n values reaches down, read off the rule itself."""
    x = torch.arange(float(n)).double()
    low, _ = paired(x.tolist())
    return float((x.mean() - low) / (x.std() / math.sqrt(n)))


def called_shown(x_NS: Tensor) -> float:
    """The share of samples whose interval lies above 0, the rule for all rows at once."""
    n = x_NS.shape[1]
    error_N = x_NS.std(-1) / math.sqrt(n)
    return float(((error_N > 1e-9) & (x_NS.mean(-1) - quantile(n) * error_N > 0)).double().mean())


@pytest.mark.parametrize("world", WORLDS)
def test_a_false_shown_is_rarer_than_three_percent(world: str) -> None:
    torch.manual_seed(0)
    for n in SEEDS:
        assert called_shown(WORLDS[world](TRIALS, n)) <= 0.03, f"{n} seeds"


def test_the_rows_at_once_are_the_rule() -> None:
    torch.manual_seed(1)
    x_NS = WORLDS["Beta(5, 1), skewness -1.2"](200, 6)
    assert called_shown(x_NS) == sum(paired(x.tolist())[0] > 0 for x in x_NS) / 200


def test_what_it_replaces_was_wrong() -> None:
    """Student t at 95% and the percentile bootstrap say shown too often where values bunch below a bound: 9% and 15% of 300."""
    torch.manual_seed(2)
    rows = WORLDS["Beta(5, 1), skewness -1.2"](300, 5).tolist()
    assert sum(student(x)[0] > 0 for x in rows) / 300 > 0.05
    assert sum(interval(x)[0] > 0 for x in rows) / 300 > 0.08


def test_a_real_difference_is_found() -> None:
    """Two standard deviations over 8 seeds: nine times in ten."""
    torch.manual_seed(3)
    assert called_shown(WORLDS["normal"](TRIALS, 8) + 2.0) > 0.85


def test_values_that_do_not_vary_have_no_interval() -> None:
    """0.1 nine times in ten and -0.9 else has the mean 0, and five equal values in 59% of samples."""
    assert all(math.isnan(x) for x in paired([0.1] * 5))
    assert all(math.isnan(x) for x in paired([0.1 + 1e-17 * i for i in range(5)]))
    assert not math.isnan(paired([0.1, 0.1, 0.1, 0.1, 0.11])[0])
