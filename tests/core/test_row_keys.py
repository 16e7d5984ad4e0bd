"""Where rows stand: trees keep who branched from whom, environments tell their states, and both reach the advantage."""

from __future__ import annotations

from dataclasses import replace

import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.advantages.states import nodes
from posttrain.core.assemble import assemble
from posttrain.core.config import Config
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Branch, Group, Rollout
from posttrain.rollouts.tree import tree
from posttrain.runs.in_memory import FunctionScorer, fit, numbered, row
from posttrain.systems.agents_multiturn.gigpo import anchored, last_steps
from posttrain.systems.agents_multiturn.gigpo import gigpo as gigpo_method
from posttrain.systems.agents_multiturn.gigpo import steps_and_episodes as gigpo
from posttrain.systems.policy_gradient.treepo import against_ancestors as treepo
from posttrain.systems.policy_gradient.treepo import treepo as treepo_method


def said(text: str, reward: float, index: int, parent: int | None = None, fork: int = 0) -> Rollout:
    ids = torch.tensor([ord(c) - ord("a") for c in text])
    T = len(ids)
    ones = torch.ones(T, dtype=torch.bool)
    branch = None if parent is None else Branch(parent, fork)
    return Rollout.single(
        row(0), torch.tensor([0]), ids, torch.zeros(T), ones, text, reward, index=index, branch=branch
    )


# 0 "abcd"; 1 left it after two letters, 2 left 1 after three, 3 left 0 at once, though it goes on with the same letter
TREE = [said("abcd", 1.0, 0), said("abca", 0.0, 1, 0, 2), said("abcb", 2.0, 2, 1, 3), said("aaaa", 5.0, 3, 0, 0)]


def equal(node_BS: torch.Tensor, s: int) -> list[list[int]]:
    """The rows by the state they stand in after s actions."""
    return sorted([b for b in range(len(node_BS)) if node_BS[b, s] == n] for n in set(node_BS[:, s].tolist()))


def test_states_are_shared_up_to_the_fork_and_no_further() -> None:
    _, batch = assemble([Group(row(0), TREE)])
    node_BS = nodes(batch)
    assert [equal(node_BS, s) for s in range(5)] == [
        [[0, 1, 2, 3]],
        [[0, 1, 2], [3]],  # 3 has the same first letter by chance
        [[0, 1, 2], [3]],
        [[0], [1, 2], [3]],  # 0 and 1 both wrote "c" after they had parted
        [[0], [1], [2], [3]],
    ]
    by_letters = nodes(batch.but(node_BS=None))
    assert equal(by_letters, 1) == [[0, 1, 2, 3]] and equal(by_letters, 3) == [[0, 1, 2], [3]]


def test_treepo_on_a_real_tree_by_hand() -> None:
    # root: all four, mean 2; {0, 1, 2} fork after two letters, mean 1; {1, 2} after three, mean 1
    # 0: 1 - 2, 1 - 1 -> -1/2;  1: 0 - 2, 0 - 1, 0 - 1 -> -4/3;  2: 0, 1, 1 -> 2/3;  3: 5 - 2 = 3
    _, batch = assemble([Group(row(0), TREE)])
    got = treepo(batch, whiten="none")[:, 0]
    torch.testing.assert_close(got, torch.tensor([-0.5, -4 / 3, 2 / 3, 3.0]))


def test_filters_may_drop_and_reorder_answers() -> None:
    _, batch = assemble([Group(row(0), [TREE[2], TREE[3], TREE[1]])])  # 0, the parent of all, is gone
    node_BS = nodes(batch)
    assert (
        equal(node_BS, 2) == [[0, 2], [1]]
        and equal(node_BS, 3) == [[0, 2], [1]]
        and equal(node_BS, 4) == [[0], [1], [2]]
    )


def test_two_trees_share_nothing_and_minibatches_keep_the_numbers() -> None:
    _, batch = assemble([Group(row(0), TREE), Group(row(1), TREE[:2])])
    node_BS = nodes(batch)
    assert set(node_BS[:4].flatten().tolist()).isdisjoint(node_BS[4:].flatten().tolist())
    torch.testing.assert_close(nodes(batch.rows(torch.tensor([5, 1, 2]))), node_BS[[5, 1, 2]])


def test_answers_apart_carry_no_tree() -> None:
    alone = [replace(r, branch=None) for r in TREE]
    assert "node_BS" not in assemble([Group(row(0), alone)])[1]


def test_a_sampled_tree_has_the_states_it_was_grown_with() -> None:
    policy = TabularPolicy(2, 6, 2).randomise(1.0, "places")
    groups = tree(RolloutRequest({"policy": policy}, [row(0), row(1)], Sampling()), n=8, fork=(2, 2), root=(2, 2))
    for r in (r for g in groups for r in g.rollouts):
        r.reward = float(r.actions.sum())
    rollouts, batch = assemble(groups)
    node_BS = nodes(batch)
    # 1 -> 2 -> 4 -> 8 paths a tree, forking at 0, 2 and 4
    assert [len(set(node_BS[:8, s].tolist())) for s in range(7)] == [1, 2, 2, 4, 4, 8, 8]
    for a in range(8):
        for b in range(8):
            for s in range(7):
                if node_BS[a, s] == node_BS[b, s]:
                    assert torch.equal(rollouts[a].actions[:s], rollouts[b].actions[:s])


# ---- states that an environment tells


def test_states_reach_the_batch_and_gigpo_by_hand() -> None:
    # both start in "door", where the first stays: one step of two actions; the second has a step more, in the "hall"
    # returns 1 and 3; "door": (1 + 3) / 2 = 2; "hall" is seen once
    a, b = said("ab", 1.0, 0), said("ac", 3.0, 1)
    a.info["states"], b.info["states"] = ["door", "door"], ["door", "hall"]
    _, batch = assemble([Group(row(0), [a, b])])
    assert batch["state_BT"].tolist() == [[0, 0], [0, 1]]
    got = gigpo(batch, episode=0.0, std=False, gamma=1.0)
    torch.testing.assert_close(got, torch.tensor([[-1.0, -1.0], [1.0, 0.0]]))


def test_an_action_without_a_state_stands_alone() -> None:
    a, b = said("abc", 1.0, 0), said("ab", 3.0, 1)
    a.info["states"] = ["door"]
    _, batch = assemble([Group(row(0), [a, b])])
    flat = batch["state_BT"].flatten().tolist()
    assert len(set(flat)) == 6


def test_the_state_of_a_text_is_its_last_whole_step() -> None:
    # "2+2=4; 4+1=5" as tokens of three characters: the step "2+2=4; " is whole after 7 characters, hence from token 3 on
    r = said("a", 0.0, 0)
    r.turns[-1].text = "2+2=4; 4+1=5"
    assert last_steps(r, [3, 6, 9, 12], "phrase") == ["", "", "", "2+2=4;"]
    assert last_steps(r, [3, 7, 9, 12], "phrase") == ["", "", "2+2=4;", "2+2=4;"]


# ---- the whole loop


def learned(method, prompts: int = 2) -> float:
    """A right first letter earns 1: how likely it becomes."""
    policy = TabularPolicy(prompts, 4, 3)
    worth = FunctionScorer(lambda rollouts: torch.tensor([float(r.actions[0] == 1) for r in rollouts]))
    config = Config(steps=15, prompts=prompts, lr=0.3, warmup=0, max_norm=100.0)
    fit(policy, method.but(select=(), shaping=(), minibatches=1, rounds=1), numbered(prompts), config, worth)
    return float(policy.table.detach()[:, 0, -1].softmax(-1)[:, 1].mean())


def test_treepo_and_gigpo_learn_through_the_loop() -> None:
    assert learned(treepo_method.but(rollout=tree.but(n=8, fork=(1, 2)))) > 0.8
    assert learned(gigpo_method.but(rollout=anchored.but(level="word"))) > 0.8
