"""The world of sums: what is right is right, and a run of it reports what it should."""

from __future__ import annotations

import torch

from claims.worlds.exact import all_answers
from claims.worlds.sums import P, V, learn, sums
from posttrain.core.sampling import Sampling
from posttrain.methods.reinforce import reinforce
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import numbered


def test_every_prompt_has_eight_right_answers_of_one_sum() -> None:
    world = sums("test", 0)
    assert world.right_PN.sum(-1).tolist() == [8.0] * P  # a + 3 b = aim (mod 8): for each b one a
    letters_NT = all_answers(world.start)[0]
    for right_N in world.right_PN:
        found = letters_NT[right_N > 0]
        assert len(((found[:, 0] + 3 * found[:, 1]) % V).unique()) == 1


def test_grading_reads_the_letters() -> None:
    world = sums("test", 0)
    rollouts = [r for rs in world.start.sample(numbered(P).prompts, 4, Sampling(), 0) for r in rs]
    letters_NT = all_answers(world.start)[0]
    for r, graded in zip(rollouts, world.graded(rollouts).tolist(), strict=True):
        at = int((letters_NT == r.actions).all(-1).nonzero())
        assert graded == float(world.right_PN[int(r.context), at])


def test_learn_reports_and_leaves_the_start_alone() -> None:
    world = sums("test", 0)
    before = world.start.table.detach().clone()
    one = learn(world, reinforce.but(rollout=sample.but(n=1)), 0, steps=2, lr=0.01)
    assert one["silent"] == 1.0  # a group of one is always of one mind
    many = learn(world, reinforce.but(rollout=sample.but(n=16)), 0, steps=30, lr=0.1)
    assert many["silent"] < 0.7 and many["accuracy"] > one["accuracy"] + 0.1 and many["entropy"] < one["entropy"]
    assert torch.equal(world.start.table, before)
