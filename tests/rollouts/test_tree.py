"""Answers that go on from a prefix, and trees of them."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import End, Group, Prompt, Rollout
from posttrain.inference.engine import Engine
from posttrain.inference.remember import remembering
from posttrain.policies.load import load_model
from posttrain.rollouts.resume import cut, resume, room, stem
from posttrain.rollouts.tree import Shape, Tree, says_again, tree
from posttrain.runs.in_memory import row


def policy(end: int | None = None, T: int = 6) -> TabularPolicy:
    return TabularPolicy(2, T, 4, end=end).randomise(1.0, "tree test")


def left(r: Rollout) -> tuple[int | None, int]:
    """From whom it branched, and where."""
    return (None, 0) if r.branch is None else (r.branch.parent, r.branch.at)


def shares(r: Rollout, g: Group) -> bool:
    """Whether it has its parent's actions up to where it left."""
    parent, at = left(r)
    return parent is not None and torch.equal(r.actions[:at], g.rollouts[parent].actions[:at])


def test_resumed_letters_have_the_probability_they_say() -> None:
    p = policy()
    begun = cut(p, p.sample([row(1)], 1, Sampling())[0][0], 2)
    (made,) = resume(p, [begun], [list(range(5))], Sampling(), step=3)
    assert len({r.text for r in made}) > 1 and all(r.text[:2] == begun.text and len(r) == 6 for r in made)
    assert all(r.version == 3 and (not r.truncated) for r in made)
    again = p.forward(made)["logp_BT"]
    torch.testing.assert_close(again, torch.stack([r.logp_T for r in made]))


def test_resumed_letters_are_drawn_from_the_policy_after_the_prefix() -> None:
    # after one letter, 4000 second letters against the table's own probabilities: a binomial share is within .03
    p = policy(T=2)
    begun = cut(p, p.sample([row(0)], 1, Sampling())[0][0], 1)
    (made,) = resume(p, [begun], [list(range(4000))], Sampling(), step=0)
    share = Counter(int(r.actions[1]) for r in made)
    wanted = p.table.detach()[0, 1, int(begun.actions[0])].softmax(-1)
    for letter in range(4):
        assert abs(share[letter] / 4000 - float(wanted[letter])) < 0.03


def test_stems_of_unequal_length_and_ended_ones() -> None:
    p = policy(end=3)
    whole = next(r for r in p.sample([row(0)], 50, Sampling())[0] if (not r.truncated) and 2 <= len(r) < 6)
    made = resume(p, [whole, cut(p, whole, 1), stem(p, row(1))], [[0], [1], [2, 3]], Sampling(), 0, more=2)
    assert made[0] == [whole]  # has ended
    assert 2 <= len(made[1][0]) <= 3 and len(made[2]) == 2 and all(1 <= len(r) <= 2 for r in made[2])
    assert room(p, stem(p, row(0)), Sampling(max_tokens=4)) == 4 and room(p, stem(p, row(0)), Sampling()) == 6


@pytest.mark.derived("rollout/tree")
def test_a_tree_shares_prefixes_where_it_says() -> None:
    p = policy()
    groups = tree(RolloutRequest({"policy": p}, [row(0), row(1)], Sampling(), 0, 0), n=8, fork=(2, 2), root=(2, 2))
    for g in groups:
        # one root forks at 0, 2 and 4: 1 -> 2 -> 4 -> 8 paths
        assert [r.index for r in g.rollouts] == list(range(8))
        assert [left(r) for r in g.rollouts] == [
            (None, 0), (0, 0), (0, 2), (1, 2), (0, 4), (1, 4), (2, 4), (3, 4)
        ]  # fmt: skip
        for r in g.rollouts[1:]:
            assert shares(r, g)
        assert all(len(r) == 6 and (not r.truncated) and r.mask_T.all() for r in g.rollouts)
        torch.testing.assert_close(p.forward(g.rollouts)["logp_BT"], torch.stack([r.logp_T for r in g.rollouts]))
    sampled = sum(len(r) - left(r)[1] for r in groups[0].rollouts)
    assert sampled == 2 * 2 + 4 * 2 + 8 * 2  # against 48 of eight answers apart


def test_a_tree_whose_paths_end_early_still_has_n_answers() -> None:
    p = policy(end=3)
    (g,) = tree(RolloutRequest({"policy": p}, [row(0)], Sampling(), 1, 0), n=7, fork=(2, 2), root=(2, 2))
    assert len(g.rollouts) == 7 and all((not r.truncated) or len(r) == 6 for r in g.rollouts)
    assert all(shares(r, g) for r in g.rollouts[1:])


def test_a_tree_is_a_function_of_its_identity() -> None:
    p = policy()
    one = tree(RolloutRequest({"policy": p}, [row(0), row(1)], Sampling(), 5, 2), n=4, fork=(3, 2))[1]
    other = tree(RolloutRequest({"policy": p}, [row(1)], Sampling(), 5, 2), n=4, fork=(3, 2))[0]
    assert [r.text for r in one.rollouts] == [r.text for r in other.rollouts]
    third = tree(RolloutRequest({"policy": p}, [row(1)], Sampling(), 6, 2), n=4, fork=(3, 2))[0]
    assert [r.text for r in one.rollouts] != [r.text for r in third.rollouts]


def test_a_segment_as_long_as_the_answer_is_plain_sampling_of_branches() -> None:
    (g,) = tree(RolloutRequest({"policy": policy()}, [row(0)], Sampling(), 0, 0), n=4, fork=(6, 4), root=(4, 4))
    assert [left(r)[1] for r in g.rollouts] == [0, 0, 0, 0] and len({r.text for r in g.rollouts}) > 1


def test_a_language_policy_goes_on_from_a_prefix() -> None:
    p = load_model("pocket", "cpu")
    (g,) = tree(
        RolloutRequest({"policy": p}, [Prompt.text("a", "2+3=")], Sampling(max_tokens=12), 0, 0), n=4, fork=(4, 2)
    )
    assert len(g.rollouts) == 4
    for r in g.rollouts:
        again_T = p.forward([r])["logp_BT"][0, : len(r)]
        torch.testing.assert_close(again_T, r.logp_T, atol=1e-4, rtol=1e-4)
        if r.branch is not None:
            assert shares(r, g)


@pytest.mark.derived("rollout/tree")
def test_the_root_forks_at_random_and_segments_are_a_fourteenth() -> None:
    p = TabularPolicy(2, 28, 4).randomise(1.0, "tree test")
    groups = tree(RolloutRequest({"policy": p}, [row(0, k) for k in range(30)], Sampling(), 0, 0))
    assert {len(g.rollouts) for g in groups} == {16}
    roots = [1 + sum(r.branch is not None and r.branch.at == 0 for r in g.rollouts) for g in groups]
    assert set(roots) == {2, 3, 4, 5, 6, 7, 8}
    assert {left(r)[1] % 2 for g in groups for r in g.rollouts} == {0}  # 28 / 14 letters
    for g, first in zip(groups, roots, strict=True):
        assert sum(left(r)[1] == 2 for r in g.rollouts) == min(first, 16 - first)  # then every path forks in two


def test_paths_that_end_leave_their_branches_to_the_others() -> None:
    # of three paths one ended with the last segment: the two that go on get a branch each, and two for it
    p = policy(end=3)
    made = Tree(RolloutRequest({"policy": p}, [row(0)], Sampling()), Shape(9, 2, 2, (3, 3), 0), [stem(p, row(0))])
    going = [cut(p, p.sample([row(0)], 1, Sampling(), seed=k)[0][0], 2) for k in range(2)]
    made.paths, made.ended = [replace(going[0], end=End.COMPLETED), *going], 1
    assert [slots for _, _, slots in made.forks()] == [[1, 3, 4], [2, 5, 6]]


def test_when_all_ended_paths_start_again_from_any_boundary() -> None:
    p = policy()
    (whole,) = p.sample([row(0)], 1, Sampling())[0]
    made = Tree(RolloutRequest({"policy": p}, [row(0)], Sampling()), Shape(9, 2, 2, (2, 2), 0), [whole])
    places = set()
    for seed in range(20):
        made.ask = RolloutRequest({"policy": p}, [row(0)], Sampling(), seed)
        ((parent, begun, slots),) = made.forks()
        assert (parent, slots) == (0, [1]) and torch.equal(begun.actions, whole.actions[: len(begun)])
        places.add(len(begun))
    assert places == {0, 2, 4}


def test_a_path_that_says_the_same_again_and_again_is_stopped() -> None:
    assert says_again("ab" * 30, 8) and not says_again("ab" * 20, 8) and not says_again("", 1)
    p = TabularPolicy(1, 200, 2)
    with torch.no_grad():
        p.table[..., 0] += 50  # always the same letter
    ask = RolloutRequest({"policy": p}, [row(0)], Sampling(max_tokens=200))
    (g,) = tree(ask, n=3, fork=(10, 2), root=(3, 3))
    assert [len(r) for r in g.rollouts] == [40, 40, 40]  # 39 letters hold 32 of them eight times
    assert all(r.truncated and r.info["repeats"] for r in g.rollouts)
    assert len(tree(ask, n=3, fork=(10, 2), root=(3, 3), repeats=0)[0].rollouts[0]) == 200


def test_segments_share_the_engines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    p = load_model("pocket", "cpu")
    ask = RolloutRequest({"policy": p}, [Prompt.text("a", "2+3=" * 20)], Sampling(max_tokens=48), 0, 0)
    read, texts = [], []
    for kept in (remembering, nullcontext):
        engine = Engine(p.model, num_pages=80)
        monkeypatch.setattr(p, "_engine", lambda engine=engine: engine)
        monkeypatch.setattr(
            "posttrain.rollouts.tree.remembering", kept if kept is remembering else lambda p, room: nullcontext()
        )
        (g,) = tree(ask, n=4, fork=(16, 2), root=(2, 2))
        read.append(engine.prefill_tokens)
        texts.append([r.text for r in g.rollouts])
        assert not engine.prefix_cache and not engine.slots.pages.cached  # nothing is left for other weights
    assert texts[0] == texts[1] and read[0] < 0.75 * read[1]  # pages of 64 that are full are not read again


def test_bad_settings() -> None:
    with pytest.raises(UserError, match="at least 1"):
        tree(RolloutRequest({"policy": policy()}, [row(0)], Sampling(), 0, 0), n=4, fork=(-1, 2))
