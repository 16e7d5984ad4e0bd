"""DAPO's soft overlong punishment by hand, and its tie to the run's limit."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.rewards.shaping.soft_overlong import soft_overlong


def of_lengths(*lengths: int) -> Batch:
    T = max(lengths)
    mask_BT = (torch.arange(T) < torch.tensor(lengths).unsqueeze(-1)).double()
    reward_BT = torch.zeros_like(mask_BT)
    reward_BT[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = 1.0
    return Batch(logp_BT=torch.zeros_like(mask_BT), mask_BT=mask_BT, reward_BT=reward_BT)


@pytest.mark.derived("shaping/soft-overlong")
def test_by_hand() -> None:
    # a limit of 20 and a cache of 4: free up to 16; 17 costs 1/4, 19 costs 3/4, 20 all of it (the paper's eq. 13)
    batch = of_lengths(3, 16, 17, 19, 20)
    paid_BT = soft_overlong(batch, longest=20)
    torch.testing.assert_close(paid_BT.sum(-1), torch.tensor([1.0, 1.0, 0.75, 0.25, 0.0]).double())
    last_B = batch.lengths_B.long() - 1
    assert torch.equal(paid_BT.sum(-1), paid_BT[torch.arange(5), last_B])  # on the last token, where the outcome is
    torch.testing.assert_close(soft_overlong(batch, 20, price=0.5).sum(-1)[-1], torch.tensor(0.5).double())
    torch.testing.assert_close(soft_overlong(batch, 40).sum(-1), torch.ones(5).double())


def test_rewards_inside_an_answer_stay_where_they_are() -> None:
    batch = of_lengths(4)
    batch["reward_BT"][0, 1] = 0.5
    torch.testing.assert_close(soft_overlong(batch, longest=4), torch.tensor([[0.0, 0.5, 0.0, 0.0]]).double())


def test_the_limit_is_the_runs() -> None:
    (part,) = find_method("dapo").within({"max_tokens": 4096}).shaping
    assert part.defaults()["longest"] == 4096
    with pytest.raises(UserError, match="max_tokens"):
        soft_overlong(of_lengths(2))
    with pytest.raises(UserError, match="cache=0"):
        soft_overlong(of_lengths(2), longest=4, cache=0.0)
