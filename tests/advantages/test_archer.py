"""ArCHer's critic and its advantage, worked out by hand.

The claim to come: archer against PPO over tokens and filtered imitation on a guessing game, return against episodes played, equal updates of the
policy; expected: archer reaches PPO's best return with a fifth of the episodes; without the memory (the last iteration alone) it needs more.
"""

from __future__ import annotations

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.systems.agents_multiturn.archer import Memory, TurnAdvantage, turn_td, turns_of


@pytest.mark.derived("plan/archer")
def test_targets_of_stored_and_fresh_turns() -> None:
    """gamma 0.5. Row 0 is stored, r = 1, not done, Vslow(s') = (2, 4): goals 2 and 3; Q = (1, 5): errors 1 and 4, L = 2 * 5 = 10, dL/dQ = 4 (Q - goal)
    = (-4, 8). Row 1 is stored and done: goals 1 and 1 whatever Vslow says; Q = (1, 0): L = 2 * 1. Row 2 is fresh: V = (0, 1), Qslow = (3, 1): L = 2 * 9,
    dL/dV = (-12, 0). No row moves what it has no target for."""
    q = torch.tensor([[1.0, 5.0], [1.0, 0.0], [7.0, 7.0]], requires_grad=True)
    v = torch.tensor([[9.0, 9.0], [9.0, 9.0], [0.0, 1.0]], requires_grad=True)
    slow_q = torch.tensor([[8.0, 8.0], [8.0, 8.0], [3.0, 1.0]])
    batch = Batch(
        mask_BT=torch.tensor([[1.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
        reward_BT=torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]),
        turn_q_BTK=q[:, None].expand(3, 2, 2), turn_v_BTK=v[:, None].expand(3, 2, 2),
        ref_turn_q_BTK=slow_q[:, None].expand(3, 2, 2), ref_turn_next_BTK=torch.tensor([2.0, 4.0]).expand(3, 2, 2),
        **{"reward:stored_B": torch.tensor([1.0, 1.0, 0.0]), "reward:done_B": torch.tensor([0.0, 1.0, 0.0])},
    )  # fmt: skip
    loss = turn_td(batch, gamma=0.5)
    torch.testing.assert_close(loss, torch.tensor([[10.0, 10.0], [2.0, 2.0], [18.0, 18.0]]))
    loss[:, 0].sum().backward()
    torch.testing.assert_close(q.grad, torch.tensor([[-4.0, 8.0], [0.0, -4.0], [0.0, 0.0]]))
    torch.testing.assert_close(v.grad, torch.tensor([[0.0, 0.0], [0.0, 0.0], [-12.0, 0.0]]))


@pytest.mark.derived("scorer/turn-advantage")
def test_the_advantage_is_the_lesser_of_each_pair() -> None:
    class Said:
        def forward(self, rows: object) -> dict[str, torch.Tensor]:
            return {"turn_q_BTK": torch.tensor([[[3.0, 1.0]]]), "turn_v_BTK": torch.tensor([[[0.5, 2.0]]])}

    one = Rollout.single(Prompt.text("p", "q"), torch.zeros(1).long(), torch.zeros(1).long(), torch.zeros(1))
    TurnAdvantage(Said()).score([Group(one.prompt, [one])])  # type: ignore[arg-type]
    assert one.reward == 0.5 and one.rewards == {"q": 1.0, "v": 0.5}


def turn(seen: list[int], acts: list[int], reward: float, continues: bool = True) -> Turn:
    made = Turn.of(Observation(torch.tensor(seen)), torch.tensor(acts), torch.zeros(len(acts)))
    made.reward, made.continues = reward, continues
    return made


def test_an_episode_as_turns() -> None:
    r = Rollout(
        Prompt.text("p", "q"), [turn([1, 2], [3], 0.0, False), turn([4], [5, 6], 0.5), turn([7], [8], 0.0)], reward=1.0
    )
    found = turns_of(r)
    assert [x["state"] for x in found] == [[1, 2], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6, 7]]
    assert [x["after"] for x in found] == [[4], [7], []] and [x["done"] for x in found] == [False, False, True]
    assert [x["reward"] for x in found] == [0.0, 0.5, 1.0]  # the outcome belongs to the last turn
    drawn = {Memory(found).prompt(i).info["remembered"]["reward"] for i in range(40)}
    assert drawn == {0.0, 0.5, 1.0}
    r.turns[1].continues = False
    with pytest.raises(UserError, match="begins a new context"):
        turns_of(r)
