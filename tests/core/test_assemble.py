"""Groups to batch: the outcome sits on the last action the policy chose, a failed reward masks its row."""

import pytest
import torch

from posttrain.core.assemble import assemble, by_role, keep_credit
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import End, Group, Origin, Prompt, Rollout

PROMPT = Prompt.text("p", "?")


def made(T: int, reward: float | None, mask: list[bool] | None = None, **more) -> Rollout:
    mask_T = torch.tensor(mask) if mask else torch.ones(T, dtype=torch.bool)
    return Rollout.single(
        PROMPT, torch.tensor([1]), torch.arange(T), torch.full((T,), -0.5), mask_T, reward=reward, **more
    )


def test_outcome_on_the_last_own_action():
    # three actions, the last written by the environment: the outcome belongs to the second
    r = made(3, 2.0, [True, True, False])
    assert assemble([Group(PROMPT, [r])])[1]["reward_BT"].tolist() == [[0.0, 2.0, 0.0]]


def test_an_answer_without_own_actions_or_without_a_reward_earns_nothing():
    rows = [made(2, 2.0, [False, False]), made(3, None), made(1, float("nan")), made(2, 0.5)]
    assert assemble([Group(PROMPT, rows)])[1]["reward_BT"].tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0.5, 0]]


def test_dense_rewards_stay_where_they_fell():
    r = made(3, 1.0)
    r.set_stream("reward", torch.tensor([0.5, 0.0, 0.25]))
    assert assemble([Group(PROMPT, [r])])[1]["reward_BT"].tolist() == [[0.5, 0.0, 1.25]]
    assert r.stream("reward").tolist() == [0.5, 0.0, 0.25]  # looking changes nothing


def test_rows_lengths_groups_and_pairs():
    groups = [Group(PROMPT, [made(2, 1.0), made(3, 0.0)], pairs=((0, 1),)), Group(PROMPT, [made(1, 1.0)] * 3)]
    rows, batch = assemble(groups)
    assert len(rows) == 5 and batch.mask_BT.shape == (5, 3)
    assert batch.mask_BT.sum(-1).tolist() == [2, 3, 1, 1, 1]
    assert batch["group_B"].tolist() == [0, 0, 1, 1, 1]
    assert (batch["chosen_P"].tolist(), batch["rejected_P"].tolist()) == ([0], [1])  # the group of three has none
    assert batch.returns_B.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]


def test_two_sampled_answers_are_no_pair():
    # which of two answers was sampled first says nothing of which is better
    _, batch = assemble([Group(PROMPT, [made(2, 1.0), made(3, 0.0)])])
    assert "chosen_P" not in batch and "rejected_P" not in batch
    with pytest.raises(UserError, match="chosen_P is read here"):
        batch["chosen_P"]


def test_pairs_and_rankings_are_places_in_their_group():
    three = [made(1, 0.0), made(1, 2.0), made(1, 1.0)]
    groups = [Group(PROMPT, three, ((1, 0), (2, 0)), (1, 2, 0)), Group(PROMPT, three[:2], ((1, 0),), (1, 0))]
    _, batch = assemble(groups)
    assert (batch["chosen_P"].tolist(), batch["rejected_P"].tolist()) == ([1, 2, 4], [0, 0, 3])
    assert batch["ranked_LK"].tolist() == [[1, 2, 0], [4, 3, -1]]
    part = batch.rows(torch.tensor([3, 4, 1]))  # the first group is cut: its list and its pairs are gone
    assert (part["chosen_P"].tolist(), part["rejected_P"].tolist()) == ([1], [0])
    assert part["ranked_LK"].tolist() == [[1, 0, -1]]


def spoken(tokens: list[int], seen: list[int], reward: float | None = None, continues: bool = False) -> Turn:
    turn = Turn.of(Observation(torch.tensor(seen)), torch.tensor(tokens), torch.full((len(tokens),), -0.5))
    turn.reward, turn.continues = reward, continues
    return turn


def test_turns_of_one_context_are_one_row_and_each_is_paid_where_it_ended():
    # two words, two words read from outside, one word: 0.5 for the first turn, 2 for the outcome
    r = Rollout(PROMPT, [spoken([5, 6], [1], 0.5), spoken([7], [8, 9], continues=True)], reward=2.0)
    rows, batch = assemble([Group(PROMPT, [r])])
    assert [row.actions.tolist() for row in rows] == [[5, 6, 8, 9, 7]] and rows[0].context.tolist() == [1]
    assert batch.mask_BT.tolist() == [[1.0, 1.0, 0.0, 0.0, 1.0]]
    assert batch["reward_BT"].tolist() == [[0.0, 0.5, 0.0, 0.0, 2.0]]
    assert batch["turn_BT"].tolist() == [[0, 0, 1, 1, 1]] and "answer_B" not in batch
    keep_credit([Group(PROMPT, [r])], batch.but(adv_BT=torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]])))
    assert [t.streams_T["adv"].tolist() for t in r.turns] == [[1.0, 2.0], [5.0]]
    assert r.total == 2.5 and r.text == ""


def test_a_context_of_its_own_is_a_row_of_its_own_and_pairs_are_of_last_rows():
    two = Rollout(PROMPT, [spoken([5, 6], [1], 0.5), spoken([7], [1, 8])], reward=2.0)
    rows, batch = assemble([Group(PROMPT, [two, made(1, 0.0)], pairs=((0, 1),))])
    assert [row.context.tolist() for row in rows] == [[1], [1, 8], [1]]
    assert batch["answer_B"].tolist() == [1, 1, 2] and batch["group_B"].tolist() == [0, 0, 0]
    assert batch["reward_BT"].tolist() == [[0.0, 0.5], [2.0, 0.0], [0.0, 0.0]]
    assert (batch["chosen_P"].tolist(), batch["rejected_P"].tolist()) == ([1], [2])


def test_an_environment_that_broke_masks_every_row_of_the_rollout():
    broken = Rollout(PROMPT, [spoken([5], [1]), spoken([7], [1, 8])], End.ENV_ERROR, "broken", reward=1.0)
    _, batch = assemble([Group(PROMPT, [broken, made(1, 1.0)])])
    assert batch.valid_B.tolist() == [False, False, True] and batch.returns_B.tolist() == [0.0, 0.0, 1.0]


def test_who_made_a_rollout_reaches_the_batch():
    _, batch = assemble([Group(PROMPT, [made(1, 1.0), made(1, 1.0, origin=Origin.WRITTEN)])])
    assert batch["written_B"].tolist() == [False, True]


def test_roles_learn_apart():
    a, b = made(1, 1.0), made(2, 0.0, role="opponent")
    assert {k: [len(g.rollouts) for g in gs] for k, gs in by_role([Group(PROMPT, [a, b])]).items()} == {
        "policy": [1],
        "opponent": [1],
    }


def test_pairs_within_a_role_go_with_it():
    four = [
        made(1, x, role=role) for x, role in ((1.0, "policy"), (2.0, "opponent"), (0.0, "policy"), (3.0, "opponent"))
    ]
    found = by_role([Group(PROMPT, four, ((0, 2), (3, 1), (3, 0)))])
    assert found["policy"][0].pairs == ((0, 1),) and found["opponent"][0].pairs == ((1, 0),)


def test_a_failed_reward_masks_its_row_and_earns_nothing():
    _, batch = assemble([Group(PROMPT, [made(2, float("nan")), made(2, 1.0)])])
    assert batch.mask_BT.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert batch["reward_BT"].tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert batch.valid_B.tolist() == [False, True]


def test_rows_trims_time_and_moves_pairs():
    pair = ((0, 1),)
    groups = [Group(PROMPT, [made(2, 1.0), made(1, 0.0)], pair), Group(PROMPT, [made(5, 1.0), made(4, 0.0)], pair)]
    _, batch = assemble(groups)
    part = batch.rows(torch.tensor([1, 0]))
    assert part.mask_BT.shape == (2, 2)
    assert (part["chosen_P"].tolist(), part["rejected_P"].tolist()) == ([1], [0])


def test_shapes_are_checked_at_the_border():
    with pytest.raises(UserError, match=r"the stream adv_BT has shape \(2, 3\), expected \(2, 2\)"):
        Batch(logp_BT=torch.zeros(2, 2), mask_BT=torch.ones(2, 2), adv_BT=torch.zeros(2, 3))
