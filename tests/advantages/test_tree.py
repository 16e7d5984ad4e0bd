"""Credit from trees and from turns, by hand; and which turn-level baselines leave the gradient unbiased."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from claims.worlds.exact import all_answers
from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.dr_grpo import dr_grpo
from posttrain.advantages.tree import tree
from posttrain.advantages.turns import turns
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.systems.agents_multiturn.gigpo import steps_and_episodes as gigpo
from posttrain.systems.policy_gradient.treepo import against_ancestors as treepo


def told(answers: list[str], rewards: list[float], group: list[int] | None = None) -> Batch:
    """Answers as letters, the outcome on the last; a dot is something the environment said."""
    T = max(len(a) for a in answers)
    ids = [[ord(c) - ord("a") if c != "." else 0 for c in a.ljust(T, ".")] for a in answers]
    mask_BT = torch.tensor([[float(c != ".") for c in a.ljust(T, ".")] for a in answers]).double()
    reward_BT = torch.zeros_like(mask_BT)
    for b, (a, r) in enumerate(zip(answers, rewards, strict=True)):
        reward_BT[b, len(a.rstrip(".")) - 1] = r
    length_B = torch.tensor([len(a) for a in answers])
    return Batch(
        logp_BT=torch.zeros_like(mask_BT), mask_BT=mask_BT, reward_BT=reward_BT, token_BT=torch.tensor(ids),
        group_B=torch.tensor(group or [0] * len(answers)), **{"length_B": length_B},
    )  # fmt: skip


def close(got: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.derived("advantage/tree")
def test_segment_credit() -> None:
    # root 1/4 (1, 0, 0, 0). "ab" has two answers, worth 1/2; "cd" two, worth 0. They part at letter 3.
    # ab: 1/2 - 1/4 on both letters, then 1 - 1/2 and 0 - 1/2; cd: 0 - 1/4, then 0 - 0
    got = tree(told(["abxy", "abyy", "cdxx", "cdyx"], [1.0, 0.0, 0.0, 0.0]))
    close(got, [[0.25, 0.25, 0.5, 0.5], [0.25, 0.25, -0.5, -0.5], [-0.25, -0.25, 0, 0], [-0.25, -0.25, 0, 0]])


def test_segment_credit_telescopes_to_the_group_centred_outcome() -> None:
    # whatever the tree, V(leaf) - V(root) = R - mean: here one letter a segment
    batch = told(["abc", "abd", "aee", "fgh", "fgi"], [1.0, 0.0, 2.0, 5.0, 3.0])
    got = tree(batch)
    # a: root 2.2, "a" 1, "ab" .5; a's segment -1.2, b's -.5, c's .5: -1.2 = 1 - 2.2
    close(got[:1], [[-1.2, -0.5, 0.5]])
    close(got[3:4], [[1.8, 1.8, 1.0]])  # f and g are one segment: 4 - 2.2; then 5 - 4


def test_answers_that_share_nothing_get_the_group_centred_outcome() -> None:
    batch = told(["abc", "bcd", "cab"], [1.0, 0.0, 5.0])
    torch.testing.assert_close(tree(batch), dr_grpo(batch))
    torch.testing.assert_close(treepo(batch, whiten="none"), dr_grpo(batch))


def test_answers_of_other_prompts_and_what_was_observed_part_ways() -> None:
    got = tree(told(["ab", "ab", "ac"], [1.0, 0.0, 3.0], group=[0, 1, 1]))
    close(got, [[0, 0], [0, -1.5], [0, 1.5]])
    # after "." the first two no longer count as one state, though they go on alike
    close(tree(told(["a.b", "a.b", "c.b"], [3.0, 0.0, 0.0])), [[0.5, 0, 1.5], [0.5, 0, -1.5], [-1, 0, -1]])


@pytest.mark.derived("advantage/treepo")
def test_treepo_averages_over_ancestors() -> None:
    # as above: against the root 3/4, -1/4, -1/4, -1/4; against their own half 1/2, -1/2, 0, 0; the mean of the two
    batch = told(["abxy", "abyy", "cdxx", "cdyx"], [1.0, 0.0, 0.0, 0.0])
    credit = [0.625, -0.375, -0.125, -0.125]
    close(treepo(batch, whiten="none"), [[c] * 4 for c in credit])
    std = math.sqrt(sum(c * c for c in credit) / 3) + 1e-4
    close(treepo(batch, whiten="answers"), [[c / std] * 4 for c in credit])
    close(treepo(batch), [[c / 0.375] * 4 for c in credit])  # over tokens: mean 0, and a variance of .5625 / 4
    # of 1 and 3 tokens: against the root 1/2 and -1/2; over the 4 tokens a mean of -1/4, a variance of 3/16
    uneven, s = told(["a", "bcd"], [1.0, 0.0]), math.sqrt(3 / 16)
    close(treepo(uneven), [[0.75 / s, 0, 0], [-0.25 / s] * 3])
    close(treepo(batch, root_only=True, whiten="none"), [[0.75] * 4, [-0.25] * 4, [-0.25] * 4, [-0.25] * 4])


def test_treepo_skips_ancestors_of_one_leaf() -> None:
    # "b" is alone after the root: only the root counts for it (-2/3 + ... R 0 against mean 1/3)
    credit = [(2 / 3 + 1 / 2) / 2, (-1 / 3 - 1 / 2) / 2, -1 / 3]
    close(treepo(told(["ax", "ay", "bx"], [1.0, 0.0, 0.0]), whiten="none"), [[c] * 2 for c in credit])


@pytest.mark.derived("advantage/turns")
def test_turns() -> None:
    # rewards fall on turns here: row 0 earns 1 then 2, row 1 has one turn and earns 4
    batch = told(["a.bb", "c"], [2.0, 4.0])
    batch["reward_BT"][0, 0] = 1.0
    # turn 1: 3 against 4; turn 2: 2, and nobody else has one
    close(turns(batch), [[-1, 0, 2, 2], [1, 0, 0, 0]])
    # the group: mean 3.5, std sqrt(.5); alone: 0
    z = 0.5 / (math.sqrt(0.5) + 1e-4)
    close(turns(batch, baseline="group"), [[-z, 0, 0, 0], [z, 0, 0, 0]])
    # each token a turn of its own: tokens 2 and 3 of row 0 both still see the 2 to come
    close(turns(batch, per="token"), [[-1, 0, 2, 2], [1, 0, 0, 0]])
    with pytest.raises(UserError, match="'others' or 'group'"):
        turns(batch, baseline="none")


# ---- bias: the expected gradient over every group that can be drawn, against the true one


def expected_gradients(advantage, stop: float = 1.5, G: int = 3) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    """(expected, true) gradient of E[R] by the logits. One prompt, three letters; the last ends the answer, and its logit
    is higher by `stop`."""
    policy = TabularPolicy(1, 3, 3, end=2).double().randomise(1.0, "bias", 3)
    with torch.no_grad():
        policy.table[..., 2] += stop
    tokens_NT, real_NT = all_answers(policy)
    N = len(tokens_NT)
    logp_NT = (
        policy.logp_all(torch.zeros(N, dtype=torch.long), tokens_NT).gather(-1, tokens_NT.unsqueeze(-1)).squeeze(-1)
    )
    logp_NT = logp_NT * real_NT
    p_N = logp_NT.sum(-1).detach().exp()
    assert float(p_N.sum()) == pytest.approx(1.0)
    worth_N = torch.randn(N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    (true,) = torch.autograd.grad((logp_NT.sum(-1).exp() * worth_N).sum(), policy.table, retain_graph=True)
    groups = torch.tensor(list(product(range(N), repeat=G)))  # every group of G answers, all as one batch
    rows = groups.flatten()
    length_B = real_NT[rows].sum(-1)
    last_BT = torch.arange(3) == length_B.unsqueeze(-1) - 1
    batch = Batch(
        logp_BT=logp_NT[rows].detach(), mask_BT=real_NT[rows].double(), reward_BT=worth_N[rows].unsqueeze(-1) * last_BT,
        token_BT=tokens_NT[rows], group_B=torch.arange(len(groups)).repeat_interleave(G), **{"length_B": length_B},
    )  # fmt: skip
    chance_B = p_N[groups].prod(-1).repeat_interleave(G) / G
    (mean,) = torch.autograd.grad((chance_B.unsqueeze(-1) * advantage(batch) * logp_NT[rows]).sum(), policy.table)
    return mean, true


def test_baselines_of_others_leave_the_gradient_unbiased() -> None:
    for advantage in (lambda b: turns(b, per="token"), lambda b: gigpo(b, 1.0, 0.0, 1.0, False, "others")):
        mean, true = expected_gradients(advantage)
        torch.testing.assert_close(mean, true, atol=1e-10, rtol=0)


def test_normalising_each_turn_over_the_group_is_biased_when_the_policy_decides_when_to_stop() -> None:
    # what is left of the last turn's gradient beside that of the first: all of it where nobody can stop before, and the
    # less the more answers do; the unbiased baseline keeps all of it
    def left(stop: float, baseline: str) -> float:
        mean, true = expected_gradients(lambda b: turns(b, baseline=baseline, per="token"), stop)
        share_T = [float((mean[0, t] * true[0, t]).sum() / (true[0, t] ** 2).sum()) for t in range(3)]
        return share_T[2] / share_T[0]

    assert left(-9.0, "group") == pytest.approx(1.0, abs=0.05)
    assert left(0.0, "group") < 0.6 and left(1.5, "group") < 0.2
    assert left(1.5, "others") == pytest.approx(1.0, abs=1e-9)


def test_segments_and_outcomes_of_a_group_point_along_the_gradient() -> None:
    # the mean of the group includes the answer itself: (1 - 1/G) of the gradient, and in its direction
    mean, true = expected_gradients(dr_grpo)
    torch.testing.assert_close(mean, true * 2 / 3, atol=1e-10, rtol=0)


# ---- GiGPO


@pytest.mark.derived("advantage/gigpo")
def test_gigpo() -> None:
    # rewards fall as they come: row 0 earns 0, 2, row 1 earns 1, 0; states 5, 6 and 6, 5: each comes twice
    batch = told(["ab", "cd"], [2.0, 0.0])
    batch["reward_BT"][1, 0] = 1.0
    batch = batch.but(state_BT=torch.tensor([[5, 6], [6, 5]]))
    # to go: 2, 2 and 1, 0. State 5: 2 and 0, mean 1; state 6: 2 and 1, mean 1.5
    plain = partial(gigpo, std=False, gamma=1.0)
    close(plain(batch, episode=0.0), [[1.0, 0.5], [-0.5, -1.0]])
    close(plain(batch, episode=0.0, baseline="others"), [[2.0, 1.0], [-1.0, -2.0]])
    # std of 2 and 0 is sqrt(2), of 2 and 1 sqrt(.5)
    one, two = 1 / (math.sqrt(2) + 1e-4), 0.5 / (math.sqrt(0.5) + 1e-4)
    close(gigpo(batch, episode=0.0, gamma=1.0), [[one, two], [-two, -one]])
    # discounted by half: 1, 2 and 1, 0. State 5: 1 and 0; state 6: 2 and 1
    close(plain(batch, episode=0.0, gamma=0.5), [[0.5, 0.5], [-0.5, -0.5]])
    # with the episode: returns 2 and 1, mean 1.5, std sqrt(.5): both comparisons by their std, or neither
    close(gigpo(batch, omega=2.0, gamma=1.0), [[2 * one + two, 3 * two], [-3 * two, -2 * one - two]])
    close(plain(batch, omega=2.0), [[2.5, 1.5], [-1.5, -2.5]])


@pytest.mark.derived("advantage/gigpo")
def test_a_step_of_gigpo_is_a_run_of_actions_in_one_state_and_counts_once() -> None:
    # row 0: a long step in state 5 and one in 6, outcome 4; row 1: a short step in state 5, two in 6, outcome 0
    batch = told(["aabc", "abbb"], [4.0, 0.0]).but(state_BT=torch.tensor([[5, 5, 5, 6], [5, 6, 6, 6]]))
    batch.mask_BT[1, 2] = 0.0  # an observation between its two steps in 6
    # gamma .5: row 0 has 2 in state 5 and 4 in state 6; row 1 nothing. State 5: mean 1, state 6: mean 4/3 of three steps
    got = gigpo(batch, episode=0.0, gamma=0.5, std=False)
    close(got, [[1.0, 1.0, 1.0, 8 / 3], [-1.0, -4 / 3, 0.0, -4 / 3]])


def test_gigpo_without_numbered_states_compares_equal_prefixes() -> None:
    # the first step of all three; the second of the two that began with a
    got = gigpo(told(["ab", "ac", "bc"], [3.0, 0.0, 0.0]), episode=0.0, std=False, gamma=1.0)
    close(got, [[2.0, 1.5], [-1.0, -1.5], [-1.0, 0.0]])


def test_gigpo_does_not_mix_groups() -> None:
    batch = told(["a", "b"], [1.0, 0.0], group=[0, 1]).but(state_BT=torch.tensor([[5], [5]]))
    close(gigpo(batch), [[0.0], [0.0]])
    with pytest.raises(UserError, match="'group' or with 'others'"):
        gigpo(batch, baseline="self")
