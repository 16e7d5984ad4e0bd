"""Rewards that read the length of an answer, its repetitions, or how well its group did; numbers derived by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rewards.shaping.cosine_length import cosine_length
from posttrain.rewards.shaping.repeats import repeated, repeats
from posttrain.systems.efficient_reasoning.grpo_lambda import best_groups
from posttrain.systems.efficient_reasoning.grpo_lambda import short_where_solved as grpo_lambda
from posttrain.systems.efficient_reasoning.laser import by_difficulty as laser_d
from posttrain.systems.efficient_reasoning.laser import length_bonus as laser
from posttrain.systems.efficient_reasoning.laser import targets_of_the_watched as targets
from posttrain.systems.efficient_reasoning.open_rs import cosine_and_form as open_rs


def answers(
    lengths: Sequence[int], outcomes: Sequence[float], groups: Sequence[int] | None = None,
    tokens: Sequence[str] | None = None,
) -> Batch:  # fmt: skip
    """Answers of these lengths, the outcome on the last token; an outcome that is nan is a failed reward."""
    B, T = len(lengths), max(lengths) + 1
    mask_BT, reward_BT = torch.zeros(2, B, T, dtype=torch.float64)
    for b, (n, x) in enumerate(zip(lengths, outcomes, strict=True)):
        mask_BT[b, :n] = float(x == x)
        reward_BT[b, n - 1] = x
    token_BT = torch.tensor([[ord(c) for c in word.ljust(T)] for word in tokens]) if tokens else None
    group_B = torch.tensor([0] * B if groups is None else groups)
    return Batch(logp_BT=torch.zeros(B, T), mask_BT=mask_BT, reward_BT=reward_BT, group_B=group_B, token_BT=token_BT)


def close(got: torch.Tensor, expected: Sequence[float]) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=2e-6, rtol=0)


# ---- cosine length (Demystifying long CoT)


@pytest.mark.derived("shaping/cosine-length")
@pytest.mark.parametrize(
    ("length", "outcome", "worth"),
    [
        # longest 8. n = 2: 1 + cos(pi/4) = 1.707107; n = 4: 1 + cos(pi/2) = 1
        (2, 1.0, 1 + 1.7071067811865475 / 2),  # right: 1 + (2 - 1)/2 * 1.7071
        (4, 1.0, 1.5),
        (6, 1.0, 1 + 0.2928932188134525 / 2),  # 1 + cos(3pi/4) = .2929: near the limit a right answer is worth about 1
        (2, 0.0, -5 * 1.7071067811865475),  # wrong: 0 + (-10 - 0)/2 * 1.7071: short and wrong is worst
        (4, 0.0, -5.0),
        (6, 0.0, -5 * 0.2928932188134525),
        (8, 1.0, -10.0),  # the limit: whatever the outcome
        (9, 0.0, -10.0),
    ],
)
def test_cosine_by_hand(length: int, outcome: float, worth: float) -> None:
    batch = answers([length], [outcome])
    reward_BT = cosine_length(batch, longest=8)
    close(reward_BT.sum(-1), [worth])
    assert float(reward_BT[0, length - 1]) == pytest.approx(worth)  # all of it on the last token


def test_cosine_ends_where_the_paper_says() -> None:
    """At no length and at the limit: 2 and 1 when right, -10 and 0 when wrong (a limit of 10^6 makes 1 token nothing)."""
    close(cosine_length(answers([1, 1], [1, 0]), longest=10**6).sum(-1), [2.0, -10.0])
    close(cosine_length(answers([8, 8], [1, 0]), longest=8, over=None).sum(-1), [1.0, 0.0])


def test_cosine_orders_answers() -> None:
    """Right: the shorter the better. Wrong: the longer the better. Any right one beats any wrong one."""
    worth_B = cosine_length(answers([1, 3, 7, 7, 3, 1], [1, 1, 1, 0, 0, 0]), longest=8).sum(-1)
    assert worth_B.tolist() == sorted(worth_B.tolist(), reverse=True) and len(set(worth_B.tolist())) == 6


def test_cosine_reads_a_component_and_leaves_failures() -> None:
    batch = answers([4, 4, 4], [0.2, 1.2, math.nan])
    batch = batch.but(**{"reward:task_B": torch.tensor([1.0, 0.0, math.nan])})
    got_BT = cosine_length(batch, longest=8, outcome="task")
    close(got_BT[:2].sum(-1), [1.5, -5.0])
    assert got_BT[2, 3].isnan()
    with pytest.raises(UserError, match="longest is 0"):
        cosine_length(batch, longest=0)


# ---- repetition, token by token


def test_which_tokens_are_repeated() -> None:
    # abcab: the 2-gram "ab" comes again at 3; aaaa: "aa" at 1 and at 2 covers 1, 2, 3; abba: no 2-gram twice
    batch = answers([5, 4, 4], [1, 1, 1], tokens=["abcab", "aaaa", "abba"])
    got = [[t for t, x in enumerate(row) if x] for row in repeated(batch, 2).tolist()]
    assert got == [[3, 4], [1, 2, 3], []]
    assert not repeated(batch, 5).any()


@pytest.mark.derived("shaping/repeats")
def test_repetition_pays_where_it_stands() -> None:
    # abcab: tokens 3 and 4 pay -.5 each. gamma 1: exactly there. gamma .8: G_4 = -.5, G_3 = -.9, G_2 = -.72,
    # G_1 = -.576, G_0 = -.4608; r = G_t - G_{t+1}; the outcome 1 on the last token
    batch = answers([5], [1.0], tokens=["abcab"])
    close(repeats(batch, n=2, penalty=-0.5, gamma=1.0)[0], [0, 0, 0, -0.5, 0.5, 0])
    got_T = repeats(batch, n=2, penalty=-0.5, gamma=0.8)[0]
    close(got_T, [0.1152, 0.144, 0.18, -0.4, 0.5, 0])
    close(got_T.flip(0).cumsum(0).flip(0) - 1.0, [-0.4608, -0.576, -0.72, -0.9, -0.5, -1.0])  # what is to come: G_t


def test_tokens_of_others_are_no_repetition() -> None:
    """The environment wrote the middle "ab": the policy's own tokens are a, b only, and the discount skips the gap."""
    batch = answers([4], [0.0], tokens=["abab"])
    batch.mask_BT[0, 1:3] = 0.0  # own: a . . b
    assert not repeated(batch, 1).any()
    batch = answers([4], [0.0], tokens=["abca"])
    batch.mask_BT[0, 1:3] = 0.0  # own: a . . a, the second is repeated: G_3 = -1, G_0 = -.5
    close(repeats(batch, n=1, penalty=-1.0, gamma=0.5)[0], [0.5, 0, 0, -1.0, 0])
    with pytest.raises(UserError, match="token_BT"):
        repeats(answers([2], [0.0]))


# ---- LASER


@pytest.mark.derived("shaping/laser")
def test_laser_by_hand() -> None:
    # target 4, alpha .5: right and short 1 + .5; right at the target 1.5; right and long 1; wrong gets no bonus
    batch = answers([2, 4, 5, 2, 5], [1.0, 1.0, 1.0, 0.0, -0.5])
    close(laser(batch, target=4).sum(-1), [1.5, 1.5, 1.0, 0.0, -0.5])
    close(laser(batch, target=4, alpha=0.0), batch["reward_BT"].tolist())


def levels() -> Batch:
    """Three groups of 6: 5, 3 and 1 of 6 right: easy, medium, hard. Right lengths 2 3 4 5 9; 3 6 8; 7."""
    lengths = [2, 3, 4, 5, 9, 9, 3, 6, 8, 2, 2, 9, 7, 9, 2, 2, 2, 2]
    outcomes = [1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    tokens = ["abcdefghi"[:n] for n in lengths]
    tokens[13] = "aaaaaaaaa"
    return answers(lengths, outcomes, [g for g in (4, 2, 9) for _ in range(6)], tokens)


@pytest.mark.derived("shaping/laser-d")
def test_laser_d_targets_by_hand() -> None:
    # G = 6: at least floor(4) = 4, floor(2) = 2, 1 are right. Easy: 4 share >= 1 needs 1/4 of 5 answers: 2 of them, L = 3.
    # Medium: 2 share >= 1 needs half of 3: 2 of them, L = 6. Hard: share >= 1: all of them, L = 7.
    part = laser_d.but(longest=9, every=1).live()
    first_B = part(levels()).sum(-1)  # before anything was seen the target is the window
    close(first_B, [1.5, 1.5, 1.5, 1.5, 1.5, 0, 1.5, 1.5, 1.5, 0, 0, 0, 1.5, 0, 0, 0, 0, 0])
    assert part.targets == [3, 6, 7]
    close(part(levels()).sum(-1), [1.5, 1.5, 1, 1, 1, 0, 1.5, 1.5, 1, 0, 0, 0, 1.5, 0, 0, 0, 0, 0])


def test_laser_de_lets_the_wrong_think_on() -> None:
    """As LASER-D, and wrong answers longer than 3, 6, 7 earn .5: rows 5 and 11, not 13, which runs in circles."""
    part = laser_d.but(longest=9, every=1, explore=True, n=3).live()
    part(levels())
    close(part(levels()).sum(-1), [1.5, 1.5, 1, 1, 1, 0.5, 1.5, 1.5, 1, 0, 0, 0.5, 1.5, 0, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("lengths", "m", "target"),
    [
        ([5], 5, 5),
        ([8, 1, 2, 3, 4], 5, 1),
        ([8, 1, 2, 3, 4, 5], 5, 2),
        ([3, 1], 2, 1),
        ([3, 1, 2], 2, 2),
        ([9, 1], 1, 9),
    ],
)
def test_laser_d_target_is_the_smallest_that_covers(lengths: list[float], m: int, target: float) -> None:
    part = laser_d.but(longest=64).live()
    part.seen[0], part.least = lengths, [m, 1, 1]
    covers = [L for L in sorted(lengths) if m * sum(x <= L for x in lengths) / len(lengths) >= 1]
    part.update()
    assert part.targets[0] == target == covers[0]
    assert part.targets[1:] == [64.0, 64.0]  # nothing seen: unchanged


def test_laser_d_state_resumes() -> None:
    one, other = laser_d.but(longest=9, every=3).live(), laser_d.but(longest=9, every=3).live()
    one(levels())
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for _ in range(3):
        close(one(levels()), other(levels()).tolist())
    assert one.targets == other.targets == [3, 6, 7]


def test_lengths_of_laser_follow_the_run() -> None:
    """A quarter of the longest answer, as 4,096 is of 16,384."""
    part = laser.within({"max_tokens": 16})
    close(part(answers([4, 5], [1.0, 1.0])).sum(-1), [1.5, 1.0])
    assert laser_d.within({"max_tokens": 16}).live().targets == [16.0] * 3


def told(rates: list[list[tuple[int, float]]], monitor: bool) -> list[Group]:
    """Groups of answers of (length, outcome)."""
    groups = []
    for k, some in enumerate(rates):
        prompt = Prompt.text(f"{monitor}{k}", "q", monitor=monitor)
        rollouts = [
            Rollout.single(prompt, torch.zeros(1).long(), torch.zeros(n).long(), torch.zeros(n)) for n, _ in some
        ]
        for r, (_, worth) in zip(rollouts, some, strict=True):
            r.reward = worth
        groups.append(Group(prompt, rollouts))
    return groups


@pytest.mark.derived("select/laser-targets")
def test_laser_d_targets_from_questions_of_their_own() -> None:
    # longest 32: the grid is 8, 10, 12 ... 30. Groups of 3: at least floor(2) = 2, floor(1) = 1, 1 are right.
    # Easy (3 of 3 right, lengths 3, 9, 11): 2 share >= 1 needs half of 3 answers: 2 of them, 9 tokens: the next of the grid, 10.
    # Medium (2 of 3, lengths 2, 3): share >= 1, all of them, 3 tokens, but never below a quarter: 8. Hard (1 of 3, 31): none: 32.
    part = targets.within({"max_tokens": 32}).live()
    easy, medium = [(3, 1.0), (9, 1.0), (11, 1.0)], [(2, 1.0), (3, 1.0), (30, 0.0)]
    hard = [(31, 1.0), (5, 0.0), (5, 0.0)]
    watched, trained = told([easy, medium, hard], True), told([hard, easy], False)
    kept = part(watched + trained)
    assert kept == trained and part.targets == [10.0, 8.0, 32.0]  # those that were watched are not learned from
    assert [r.rewards["target"] for g in kept for r in g.rollouts] == [32.0] * 3 + [10.0] * 3
    assert part(told([medium], False))[0].rollouts[0].rewards["target"] == 8.0  # until the next time
    again = targets.within({"max_tokens": 32}).live()
    again.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert again.targets == part.targets
    part(told([easy], True))
    assert part.targets == [10.0, 32.0, 32.0]  # a level without a right answer has no target


def test_laser_d_pays_within_the_target_that_an_answer_carries() -> None:
    batch = answers([4, 6, 6], [1.0, 1.0, 0.0], tokens=["abcd", "abcdef", "abcdef"])
    batch = batch.but(**{"reward:target_B": torch.tensor([5.0, 5.0, 5.0])})
    part = laser_d.but(longest=9, every=1).live()
    close(part(batch).sum(-1), [1.5, 1.0, 0.0])
    assert part.targets == [9.0] * 3  # nothing is learned of the training answers
    close(laser_d.but(longest=9, explore=True).live()(batch).sum(-1), [1.5, 1.0, 0.5])


# ---- GRPO-lambda


@pytest.mark.derived("shaping/grpo-lambda")
def test_grpo_lambda_by_hand() -> None:
    # group 5: rate 2/3, right lengths 2, 6: mean 4, std 2, z = -1, 1; sigmoid(-1) = .268941, sigmoid(1) = .731059.
    # group 1: rate 1/3. top .5 of 2 groups is one: group 5 pays, group 1 keeps plain rewards.
    batch = answers([2, 6, 1, 3, 9, 9], [1, 1, 0, 1, 0, 0], [5, 5, 5, 1, 1, 1])
    close(grpo_lambda(batch, top=0.5, alpha=0.4).sum(-1), [1 - 0.4 * 0.2689414, 1 - 0.4 * 0.7310586, 0, 1, 0, 0])
    # top 1: the only right answer of group 1 stands at its own mean: sigmoid(0) = 1/2
    close(grpo_lambda(batch, top=1.0, alpha=0.4).sum(-1)[3:], [0.8, 0, 0])
    close(grpo_lambda(batch, top=0.0).sum(-1), [1, 1, 0, 1, 0, 0])


@pytest.mark.parametrize(
    ("top", "chosen"), [(0.2, [7]), (0.25, [7]), (0.26, [2, 7]), (0.75, [2, 4, 7]), (1.0, [2, 3, 4, 7])]
)
def test_grpo_lambda_chooses_a_fixed_share(top: float, chosen: list[int]) -> None:
    """Rates 1/2, 0, 1/2, 1 of the groups 2, 3, 4, 7; of the two equal ones the first by number."""
    batch = answers([1] * 8, [1, 0, 0, 0, 1, 0, 1, 1], [2, 2, 3, 3, 4, 4, 7, 7])
    rate_B = torch.tensor([0.5, 0.5, 0, 0, 0.5, 0.5, 1, 1])
    got = best_groups(rate_B, batch["group_B"], batch.valid_B, top)
    assert sorted(got.tolist()) == chosen


def test_grpo_lambda_says_what_a_share_is() -> None:
    with pytest.raises(UserError, match="top is 20"):
        grpo_lambda(answers([1], [1]), top=20)


# ---- Open-RS


@pytest.mark.derived("shaping/open-rs")
def test_open_rs_by_hand() -> None:
    # longest 8: n = 4: c = +-(3/4 + 1/4 cos(pi/2)) = +-.75; n = 8: +-.5; n = 2: +-(.75 + .25 * .707107) = +-.926777
    # R = 2 c + 1 [form]; the components say right 1 1 0 0 1 and well-formed 1 0 1 0 1
    batch = answers([4, 8, 4, 8, 2], [2.0, 1.0, 1.0, 0.0, 2.0])
    told = {"reward:task_B": torch.tensor([1.0, 1, 0, 0, 1]), "reward:format_B": torch.tensor([1.0, 0, 1, 0, 1])}
    batch = batch.but(**told)
    got_B = open_rs(batch, longest=8, outcome="task", format="format").sum(-1)
    close(got_B, [2.5, 1.0, -0.5, -1.0, 2 * 0.926776695 + 1])
    close(open_rs(answers([4, 4], [1.0, 0.0]), longest=8).sum(-1), [1.5, -1.5])  # nothing but right and wrong


def test_open_rs_ends_where_the_recipe_says() -> None:
    close(open_rs(answers([1, 1], [1, 0]), longest=10**6, cosine=1.0).sum(-1), [1.0, -1.0])
    close(open_rs(answers([8, 8], [1, 0]), longest=8, cosine=1.0).sum(-1), [0.5, -0.5])
    with pytest.raises(UserError, match="no component of the reward named 'form'"):
        open_rs(answers([1], [1]), longest=8, format="form")
