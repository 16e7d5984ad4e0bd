"""QwenLong-L1.5's credit by hand: each task's own spread, blame gated by entropy with a memory; and its balanced prompts."""

from __future__ import annotations

import math

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core import laws
from posttrain.core.assemble import assemble
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.environments.task import task
from posttrain.runs.in_memory import Listed, row
from posttrain.systems.policy_gradient.lite_ppo import group_mean_batch_std as lite_ppo
from posttrain.systems.policy_gradient.qwenlong_l15 import aepo, share, task_balanced, task_std
from tests.advantages.test_advantages import close, outcomes


def two_tasks() -> Batch:
    """Prompts 0 and 1 are of task 0, with rewards 0 and 1; prompts 2 and 3 of task 1, with rewards 20 times smaller."""
    batch = outcomes([1.0, 0.0, 1.0, 1.0, 0.05, 0.0, 0.05, 0.05], [0, 0, 1, 1, 2, 2, 3, 3])
    return batch.but(**{"task_B": torch.tensor([0] * 4 + [1] * 4)})


@pytest.mark.derived("advantage/task-std")
def test_each_task_has_its_own_spread() -> None:
    # task 0: rewards 1, 0, 1, 1, mean 3/4, squares 1/16 * 3 + 9/16 = 3/4, unbiased std sqrt(1/4) = 1/2
    # prompt 0: +-1/2 over 1/2 = +-1; prompt 1: equals, 0. Task 1 is the same, 20 times smaller
    close(task_std(two_tasks(), eps=0.0)[:, 0], [1.0, -1.0, 0.0, 0.0, 1.0, -1.0, 0.0, 0.0])
    together = lite_ppo(two_tasks(), eps=0.0)[:, 0]  # in the spread of both, the small task hardly counts
    assert abs(float(together[4])) < 0.06 and float(together[0]) > 0.9


def test_one_task_is_lite_ppo() -> None:
    batch = laws.example()
    torch.testing.assert_close(task_std(batch), lite_ppo(batch))


def sure(nats: float) -> Batch:
    """Two answers of two tokens, one right; the sampler's log-probabilities say how undecided it was."""
    ones = torch.ones(2, 2).double()
    reward_BT = torch.tensor([[0.0, 1.0], [0.0, 0.0]]).double()
    return Batch(
        logp_BT=0 * ones, mask_BT=ones, old_logp_BT=-nats * ones, reward_BT=reward_BT, group_B=torch.tensor([0, 0])
    )


@pytest.mark.derived("advantage/aepo")
def test_blame_goes_above_the_band_and_comes_back_below_it() -> None:
    # rewards 1, 0: std sqrt(1/2); A = +-1/2 / sqrt(1/2) = +-.7071
    part, half = aepo.but(low=0.2, high=0.5, exact=False).live(), math.sqrt(0.5)
    blamed = []
    for nats in (0.3, 0.6, 0.4, 0.25, 0.1, 0.3, 0.51):
        got = part(sure(nats))
        assert float(got[0, 0]) == pytest.approx(half, abs=1e-3)  # praise always counts
        blamed.append(float(got[1, 0]))
    # inside: blame; above: none; falling through the band: still none; below: again; inside: still; above: none
    expected = [-half, 0.0, 0.0, 0.0, -half, -half, 0.0]
    assert blamed == pytest.approx(expected, abs=1e-3)


def test_the_gate_is_remembered_over_a_restart() -> None:
    part = aepo.but(low=0.2, high=0.5, exact=False).live()
    part(sure(0.9))
    other = aepo.but(low=0.2, high=0.5, exact=False).live()
    other.load_state_dict(part.state_dict())
    assert (
        float(other(sure(0.3))[1, 0]) == 0.0
        and float(aepo.but(low=0.2, high=0.5, exact=False).live()(sure(0.3))[1, 0]) < 0
    )
    with pytest.raises(UserError, match="0 <= low <= high"):
        aepo.but(low=0.5, high=0.2).live()


def test_the_batch_knows_the_task_of_each_row() -> None:
    policy = TabularPolicy(2, 2, 3)
    prompts = [row(0, task="a"), row(1, task="b"), row(0, "again", task="a")]
    groups = [Group(p, made) for p, made in zip(prompts, policy.sample(prompts, 2, Sampling()), strict=True)]
    _, batch = assemble(groups)
    assert batch["task_B"].tolist() == [0, 0, 1, 1, 0, 0]
    _, without = assemble([Group(row(0), policy.sample([row(0)], 2, Sampling())[0])])
    assert "task_B" not in without


# ---- balanced prompts


@pytest.mark.derived("prompts/task-balanced")
def test_as_many_of_each_task_however_many_there_are() -> None:
    env = Listed([row(0, i, task="many" if i < 9 else "few") for i in range(12)])
    sampler = task_balanced.live()
    sampler.start(env, 0)
    steps = [[p.info["task"] for p in sampler.propose(4, step)] for step in range(3)]
    assert steps == [["many", "many", "few", "few"]] * 3
    seen = [p.id for step in range(5) for p in sampler.propose(4, step)]
    # 10 draws of each task: 9 prompts once and one of them again; 3 prompts three times and one of them again
    assert sorted(seen.count(f"row0/{i}") for i in range(12)) == [1] * 8 + [2, 3, 3, 4]
    other = task_balanced.but(by="kind").live()
    other.start(env, 0)
    with pytest.raises(UserError, match="no 'kind' to balance by"):
        other.propose(4, 0)


def test_what_does_not_divide_goes_round() -> None:
    # 5 prompts of 3 tasks: one each, the two left over to tasks 0 and 1, then 2 and 0, then 1 and 2: 5 of each in 3 steps
    counts = [[share(s + 1, 5, k, 3) - share(s, 5, k, 3) for k in range(3)] for s in range(3)]
    assert counts == [[2, 2, 1], [2, 1, 2], [1, 2, 2]]


def test_a_mixture_is_balanced_and_fresh() -> None:
    env = task("arithmetic + counting", think=False)
    sampler = task_balanced.live()
    sampler.start(env, 0)
    first, second = (sampler.propose(4, step) for step in (0, 1))
    assert [p.info["task"] for p in first] == ["arithmetic"] * 2 + ["counting"] * 2
    assert len({p.id for p in first + second}) == 8
    assert isinstance(first[0], Prompt) and [p.id for p in sampler.propose(4, 0)] == [p.id for p in first]


def test_the_entropy_is_of_the_vocabulary_by_answer_and_tokens_are_averaged_within_groups() -> None:
    """Groups of 2 answers: lengths 1 and 3, and 2 and 2. H = mean over answers of their mean entropy = (1 + 1/3 + 0 + 0) / 4 = 1/3."""
    mask_BT = torch.tensor([[1.0, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0]])
    entropy_BT = torch.tensor([[1.0, 9, 9], [1, 0, 0], [0, 0, 9], [0, 0, 9]])
    batch = Batch(
        logp_BT=0 * mask_BT, mask_BT=mask_BT, old_logp_BT=-5.0 * mask_BT, old_entropy_BT=entropy_BT,
        reward_BT=torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]]),
        group_B=torch.tensor([0, 0, 1, 1]),
    )  # fmt: skip
    plain_BT = task_std(batch)
    made_BT = aepo.but(low=0.0, high=0.5).live()(batch)
    # 8 tokens, 2 groups of 4: all weigh 8 / (2 * 4) = 1
    torch.testing.assert_close(made_BT, plain_BT)
    gated_BT = aepo.but(low=0.0, high=0.3).live()(batch)
    # H = 1/3 > 0.3: blame goes. 1 and 2 tokens are kept: 8 / (2 * 1) = 4 and 8 / (2 * 2) = 2; a token mean over 8 is then
    # (1/1 of the first group + 1/2 for each of two tokens of the second) / 2
    weight_B = torch.tensor([4.0, 0.0, 2.0, 0.0])
    torch.testing.assert_close(gated_BT, plain_BT * weight_B.unsqueeze(-1))


def test_rows_without_a_task_are_one_and_some_without_are_refused() -> None:
    from posttrain.environments.data import data

    live = task_balanced.live()
    live.start(data([{"question": f"q{i}", "answer": "1"} for i in range(30)]), 0)
    assert len(live.propose(4, 0)) == 4
    mixed = task_balanced.live()
    mixed.start(data([{"question": f"q{i}", "answer": "1", **({"task": "a"} if i % 2 else {})} for i in range(30)]), 0)
    with pytest.raises(UserError, match="have no 'task' to balance by, and others have"):
        mixed.propose(4, 0)
