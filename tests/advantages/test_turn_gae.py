"""GAE over turns, worked out by hand."""

from __future__ import annotations

import torch

from posttrain.advantages.gae import gae
from posttrain.advantages.turn_gae import turn_gae
from posttrain.core.batch import Batch


def batch_of(mask: list[list[int]], reward: list[list[float]], value: list[list[float]], **more: torch.Tensor) -> Batch:
    numbers = {"mask_BT": mask, "reward_BT": reward, "old_value_BT": value}
    return Batch(**{k: torch.tensor(x, dtype=torch.float32) for k, x in numbers.items()}, **more)


def test_two_turns_by_hand() -> None:
    """Turn 1 (two tokens, V 0.5 at its start) earns 1, then an observation that pays 0.25 more, turn 2 (V 2 at its start) earns 4.
    d_2 = 4 - 2 = 2; A_2 = 2; d_1 = 1.25 + 0.9 * 2 - 0.5 = 2.55; A_1 = 2.55 + 0.9 * 0.5 * 2 = 3.45. Returns: 4 and 3.95."""
    batch = batch_of([[1, 1, 0, 1, 1]], reward=[[0.0, 1.0, 0.25, 0.0, 4.0]], value=[[0.5, 9.0, 7.0, 2.0, 9.0]])
    adv_BT, return_BT = turn_gae(batch, gamma=0.9, lam=0.5, whiten=False)
    torch.testing.assert_close(adv_BT, torch.tensor([[3.45, 3.45, 0.0, 2.0, 2.0]]))
    torch.testing.assert_close(return_BT, torch.tensor([[3.95, 3.95, 0.0, 4.0, 4.0]]))


def test_turns_of_one_token_are_gae() -> None:
    """Where every turn has one token, time counts the same in both."""
    torch.manual_seed(0)
    batch = batch_of([[1, 0, 1, 0, 1, 0]] * 3, reward=torch.randn(3, 6).tolist(), value=torch.randn(3, 6).tolist())
    for a, b in zip(turn_gae(batch, 0.8, 0.7, False), gae(batch, 0.8, 0.7, False), strict=True):
        torch.testing.assert_close(a * batch.mask_BT, b * batch.mask_BT)


def test_what_the_episode_says_is_a_turn_comes_first() -> None:
    """Two turns without an observation between them are one run of tokens, and still two turns."""
    turn_BT = torch.tensor([[0, 0, 1]])
    batch = batch_of([[1, 1, 1]], reward=[[0.0, 1.0, 2.0]], value=[[0.0, 0.0, 0.5]], turn_BT=turn_BT)
    adv_BT, _ = turn_gae(batch, gamma=1.0, lam=0.0, whiten=False)
    torch.testing.assert_close(adv_BT, torch.tensor([[1.5, 1.5, 1.5]]))


def test_a_row_with_fewer_turns_keeps_its_own() -> None:
    """lam 1, gamma 1: A_k = all that is earned from k on, less V_k; a shorter row is not touched by turns that it does not have."""
    batch = batch_of(
        [[1, 0, 1], [1, 0, 0]], reward=[[1.0, 0.0, 2.0], [5.0, 0.0, 0.0]], value=[[0.5, 0.0, 0.25], [1.0, 0.0, 3.0]]
    )
    adv_BT, _ = turn_gae(batch, gamma=1.0, lam=1.0, whiten=False)
    torch.testing.assert_close(adv_BT, torch.tensor([[2.5, 0.0, 1.75], [4.0, 0.0, 0.0]]))
