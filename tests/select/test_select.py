"""Filters: what is kept, in which order, and that the input is left alone."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.registry import find, parts
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.losses.aggregate import valid_pairs
from posttrain.systems.preference.brain import brain_loss

NAN = math.nan
LIMIT = {"max_tokens": 64}  # what a parameter may follow in a run


def rollout(prompt: Prompt, reward: float | None, stopped: bool = True, index: int = 0) -> Rollout:
    actions = torch.tensor([1, 2, 3])
    mask_T = torch.tensor([True, False, True])
    context, logp_T = torch.tensor([0]), torch.zeros(3)
    return Rollout.single(prompt, context, actions, logp_T, mask_T, reward=reward, stopped=stopped, index=index)


def group(id: str, rewards, cut=()) -> Group:
    prompt = Prompt.text(id, "?")
    return Group(prompt, [rollout(prompt, r, stopped=i not in cut, index=i) for i, r in enumerate(rewards)])


def kept(name: str, *groups: Group) -> dict[str, list[int]]:
    """Prompt id -> the indices of its rollouts, in order."""
    return {g.prompt.id: [r.index for r in g.rollouts] for g in find(name, "select")(list(groups))}


@pytest.mark.derived("select/zero-variance")
def test_zero_variance() -> None:
    groups = [
        group("mixed", [0.0, 1.0, 0.0]),
        group("solved", [1.0, 1.0]),
        group("failed", [1.0, NAN, 1.0]),  # the failed one is no variance
        group("half", [1.0, NAN, 0.0]),  # kept whole, failed sibling included
        group("lonely", [1.0]),
        group("unscored", [None, None]),
    ]
    assert kept("zero_variance", *groups) == {"mixed": [0, 1, 2], "half": [0, 1, 2]}


@pytest.mark.derived("select/zero-variance")
def test_what_turns_earned_is_variance_too() -> None:
    played = group("played", [0.0, 0.0])
    played.rollouts[1].turns[0].reward = 1.0
    assert kept("zero_variance", played) == {"played": [0, 1]}


@pytest.mark.derived("select/overlong")
def test_overlong_masks_by_default() -> None:
    before = group("a", [1.0, 0.0], cut=(1,))
    (after,) = find("overlong", "select")([before])
    assert after.rollouts[0].mask_T.tolist() == [True, False, True]
    assert after.rollouts[1].mask_T.tolist() == [False, False, False]
    assert after.rollouts[1].mask_T.dtype == torch.bool
    assert before.rollouts[1].mask_T.tolist() == [True, False, True]
    assert after.rollouts[1].reward == 0.0


def test_overlong_can_drop() -> None:
    groups = [group("a", [1.0, 0.0, 2.0], cut=(1,)), group("b", [1.0], cut=(0,))]
    assert kept("overlong(how='drop')", *groups) == {"a": [0, 2]}


@pytest.mark.derived("select/best-of")
def test_best_of() -> None:
    groups = [
        group("a", [0.0, 3.0, 2.0]),
        group("tie", [1.0, 1.0]),
        group("nan", [NAN, -5.0]),
        group("none", [NAN, None]),
    ]
    assert kept("best_of", *groups) == {"a": [1], "tie": [0], "nan": [1]}


@pytest.mark.derived("select/best-worst")
def test_best_worst() -> None:
    groups = [
        group("a", [0.0, 3.0, -1.0, 2.0]),
        group("tie", [1.0, 1.0]),
        group("nan", [NAN, -5.0, -2.0]),
        group("one", [1.0, NAN]),
        group("none", [NAN]),
    ]
    assert kept("best_worst", *groups) == {"a": [1, 2], "nan": [2, 1]}


def test_an_answer_that_overlong_silenced_is_neither_judged_nor_chosen() -> None:
    groups = find("overlong", "select")([group("a", [9.0, 1.0, 0.0], cut=(0,)), group("b", [9.0, 1.0, 1.0], cut=(0,))])
    assert kept("best_of", *groups) == {"a": [1], "b": [1]}
    assert kept("best_worst", *groups) == {"a": [1, 2]}
    assert kept("zero_variance", *groups) == {"a": [0, 1, 2]}  # b: only the silenced answer differs


@pytest.mark.derived("select/in-twos")
def test_in_twos() -> None:
    # better first, whichever was sampled first; equal ones as they came; the fifth is left over
    (g,) = find("in_twos", "select")([group("a", [0.0, 1.0, 2.0, 2.0, 9.0])])
    assert g.pairs == ((1, 0), (2, 3)) and [r.index for r in g.rollouts] == [0, 1, 2, 3, 4]
    (g,) = find("in_twos", "select")([group("a", [NAN, 1.0])])
    _, batch = assemble([g])
    assert float(valid_pairs(batch).sum()) == 0  # one could not be scored


def test_pairs_follow_their_answers() -> None:
    """Places are numbers: when an answer leaves, they must not come to mean others, least of all of the next group."""
    made = group("a", [0.0, 1.0, 2.0, 3.0], cut=(0, 2))
    made.pairs, made.ranking = ((3, 1), (2, 0), (1, 0)), (3, 2, 1, 0)
    (kept,) = find("overlong(how='drop')", "select")([made])
    assert [r.index for r in kept.rollouts] == [1, 3] and kept.pairs == ((1, 0),) and kept.ranking == (1, 0)
    (best,) = find("best_of", "select")([made])
    assert [r.index for r in best.rollouts] == [3] and best.pairs == () and best.ranking == ()
    _, batch = assemble([best, group("b", [0.0, 1.0])])
    assert "chosen_P" not in batch and "ranked_LK" not in batch


def test_only_reorders_pairs_too() -> None:
    made = group("a", [0.0, 1.0, 2.0])
    made.pairs, made.ranking = ((2, 0),), (2, 1, 0)
    other = made.only([2, 0])
    assert [r.index for r in other.rollouts] == [2, 0] and other.pairs == ((0, 1),) and other.ranking == (0, 1)
    assert made.pairs == ((2, 0),)


def test_overlong_silences_every_turn_of_a_context() -> None:
    cut = group("a", [0.0], cut=(0,)).rollouts[0]
    second = Turn.of(Observation(torch.tensor([7])), torch.tensor([4, 5]), torch.zeros(2))
    second.continues, second.stopped = True, False
    whole = Group(cut.prompt, [replace(cut, turns=[*cut.turns, second])])
    (after,) = find("overlong", "select")([whole])
    assert not after.rollouts[0].mask_T.any() and len(after.rollouts[0].mask_T) == 6
    assert whole.rollouts[0].mask_T.any()


@pytest.mark.parametrize("part", parts("select"), ids=str)
def test_every_filter_leaves_its_input_alone_and_invents_nothing(part) -> None:
    groups = [group("a", [0.0, NAN, 1.0], cut=(0,)), group("b", [1.0, 1.0]), group("c", [None, 0.5], cut=(0, 1))]
    before = copy.deepcopy(groups)
    out = part.within(LIMIT).live()(groups)
    for old, new in zip(before, groups, strict=True):
        assert [r.index for r in old.rollouts] == [r.index for r in new.rollouts]
        for x, y in zip(old.rollouts, new.rollouts, strict=True):
            assert x.mask_T.tolist() == y.mask_T.tolist()
            assert repr(x.reward) == repr(y.reward)
    ids = [g.prompt.id for g in out]
    assert ids == [g.prompt.id for g in groups if g.prompt.id in ids]  # the order of prompts stays
    for new in out:
        assert new.rollouts, "an empty group was kept"
        (old,) = (g for g in groups if g.prompt.id == new.prompt.id)
        assert {r.index for r in new.rollouts} <= {r.index for r in old.rollouts}


@pytest.mark.parametrize("part", parts("select"), ids=str)
def test_every_filter_takes_no_groups(part) -> None:
    assert part.within(LIMIT).live()([]) == []


def test_unknown_way_is_told() -> None:
    with pytest.raises(UserError, match="did you mean 'drop'"):
        find("overlong", "select")([], how="drops")


@pytest.mark.derived("select/as-lists")
def test_as_lists_orders_what_was_scored_also_where_all_earned_the_same() -> None:
    """Sampler, reference and policy agree (all logp 0). Rewards 0, none, log 3: the list is (2, 0), a = (3/4, 1/4), b = (1/2, 1/2), so BRAIn's L =
    3/4 log 3/2 + 1/4 log 1/2 = 0.130812, dL/dlogp = b - a = -1/4 and 1/4 at each token. Equal rewards: L = 0 and no pull. One scored answer
    is no list."""
    groups = [group("ranked", [0.0, NAN, math.log(3)]), group("equal", [1.0, 1.0]), group("lonely", [NAN, 1.0])]
    assert kept("as_lists", *groups) == {"ranked": [2, 0], "equal": [0, 1]}
    _, batch = assemble(find("as_lists", "select")(groups))
    assert batch["ranked_LK"].tolist() == [[0, 1], [2, 3]]
    logp_BT = torch.zeros(4, 3, requires_grad=True)
    loss_L = brain_loss(batch.but(logp_BT=logp_BT, ref_logp_BT=torch.zeros(4, 3)))
    loss_L.sum().backward()
    torch.testing.assert_close(loss_L.detach(), torch.tensor([0.130812, 0.0]), atol=1e-5, rtol=0)
    assert logp_BT.grad is not None
    own = [[-0.25, 0.0, -0.25], [0.25, 0.0, 0.25], [0.0] * 3, [0.0] * 3]  # the second token is the environment's
    torch.testing.assert_close(logp_BT.grad, torch.tensor(own))
