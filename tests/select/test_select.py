"""Filters: what is kept, in which order, and that the input is left alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.registry import find, parts
from posttrain.core.types import Group, Prompt, Rollout

NAN = math.nan


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


@pytest.mark.parametrize("part", parts("select"), ids=str)
def test_every_filter_leaves_its_input_alone_and_invents_nothing(part) -> None:
    groups = [group("a", [0.0, NAN, 1.0], cut=(0,)), group("b", [1.0, 1.0]), group("c", [None, 0.5], cut=(0, 1))]
    before = copy.deepcopy(groups)
    out = part(groups)
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
    assert part([]) == []


def test_unknown_way_is_told() -> None:
    with pytest.raises(UserError, match="did you mean 'drop'"):
        find("overlong", "select")([], how="drops")
