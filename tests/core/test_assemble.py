"""Groups to batch: the outcome sits on the last action the policy chose, a failed reward masks its row."""

import torch

from posttrain.core.assemble import assemble, earned
from posttrain.core.batch import Batch
from posttrain.core.types import Group, Prompt, Rollout

PROMPT = Prompt.text("p", "?")


def made(T: int, reward: float | None, mask: list[bool] | None = None, **more) -> Rollout:
    mask_T = torch.tensor(mask) if mask else torch.ones(T, dtype=torch.bool)
    return Rollout.single(
        PROMPT, torch.tensor([1]), torch.arange(T), torch.full((T,), -0.5), mask_T, reward=reward, **more
    )


def test_outcome_on_the_last_own_action():
    # three actions, the last written by the environment: the outcome belongs to the second
    assert earned(made(3, 2.0, [True, True, False])).tolist() == [0.0, 2.0, 0.0]


def test_dense_rewards_stay_where_they_fell():
    r = made(3, 1.0, reward_T=torch.tensor([0.5, 0.0, 0.25]))
    assert earned(r).tolist() == [0.5, 0.0, 1.25]


def test_rows_lengths_groups_and_pairs():
    groups = [Group(PROMPT, [made(2, 1.0), made(3, 0.0)]), Group(PROMPT, [made(1, 1.0)] * 3)]
    rollouts, batch = assemble(groups)
    assert len(rollouts) == 5 and batch.mask_BT.shape == (5, 3)
    assert batch.mask_BT.sum(-1).tolist() == [2, 3, 1, 1, 1]
    assert batch.group_B.tolist() == [0, 0, 1, 1, 1]
    assert (batch.chosen_P.tolist(), batch.rejected_P.tolist()) == ([0], [1])  # the group of three is no pair
    assert batch.returns_B.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_a_failed_reward_masks_its_row_and_earns_nothing():
    _, batch = assemble([Group(PROMPT, [made(2, float("nan")), made(2, 1.0)])])
    assert batch.mask_BT.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert batch.reward_BT.tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert batch.valid_B.tolist() == [False, True]


def test_rows_trims_time_and_moves_pairs():
    groups = [Group(PROMPT, [made(2, 1.0), made(1, 0.0)]), Group(PROMPT, [made(5, 1.0), made(4, 0.0)])]
    _, batch = assemble(groups)
    part = batch.rows(torch.tensor([1, 0]))
    assert part.mask_BT.shape == (2, 2)
    assert (part.chosen_P.tolist(), part.rejected_P.tolist()) == ([1], [0])


def test_shapes_are_checked_at_the_border():
    import pytest

    from posttrain.core.errors import UserError

    with pytest.raises(UserError, match=r"Batch.adv_BT has shape \(2, 3\), expected \(2, 2\)"):
        Batch(torch.zeros(2, 2), torch.ones(2, 2), adv_BT=torch.zeros(2, 3))
