"""Episodes played on from their middle: the same state, other draws, and a difference is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.types import Branch
from posttrain.rollouts.branch import Stem, play_on, stem_of
from posttrain.rollouts.episode import episodes
from tests.runs import tiny_run


class Sum(pt.Environment):
    """Says the number of letters so far plus a drawn number; four turns, the last pays what was said in all."""

    name = "sum"

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt.text(f"{split}-{index}", "ab"[index % 2])

    def open(self, prompt: pt.Prompt, key: int) -> pt.Episode:
        return Adding(pt.rng.python("sum", key).randint(0, 9))


class Adding(pt.Episode):
    def __init__(self, number: int) -> None:
        self.number, self.turns = number, 0

    def step(self, turn: pt.Turn) -> pt.Step:
        self.turns += 1
        self.number += len(turn)
        return pt.Step(
            [{"role": "user", "content": str(self.number)}] if self.turns < 4 else None,
            reward=self.number if self.turns == 4 else 0.0,
        )


def request(env: Any) -> pt.RolloutRequest:
    policy = tiny_run.policy()
    policy.stops = tuple(range(1, 12))
    return pt.RolloutRequest(
        {"policy": policy}, [env.prompt(i) for i in range(2)], pt.Sampling(max_tokens=40), 0, 5, env
    )


def whole(ask: pt.RolloutRequest) -> list[pt.Rollout]:
    return [r for g in episodes(ask, 3) for r in g.rollouts if len(r.turns) == 4]


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_a_branch_keeps_its_beginning_and_stands_in_the_same_state(turns: int) -> None:
    ask = request(Sum())
    first = whole(ask)
    assert len(first) >= 3
    made = play_on(ask, [stem_of(ask, r, turns, 10 + i) for i, r in enumerate(first)])
    for old, new in zip(first, made, strict=True):
        at = new.branch.at if new.branch else -1
        assert new.branch == Branch(old.index, at) and torch.equal(new.actions[:at], old.actions[:at])
        assert [t.observation.tokens.tolist() for t in new.turns[: turns + 1]] == [
            t.observation.tokens.tolist() for t in old.turns[: turns + 1]
        ]
        if len(new.turns) == 4:  # the number that was drawn, and all that was said
            said = sum(len(t) for t in new.turns)
            assert new.total - said == old.total - sum(len(t) for t in old.turns)
    assert any(not torch.equal(a.actions, b.actions) for a, b in zip(first, made, strict=True))


def test_the_whole_of_an_episode_leaves_nothing_to_play() -> None:
    ask = request(Sum())
    r = whole(ask)[0]
    (made,) = play_on(ask, [stem_of(ask, r, 4, 9)])
    assert made.total == r.total and torch.equal(made.actions, r.actions)


def test_another_state_is_told_and_masked() -> None:
    ask = request(Sum())
    r = whole(ask)[0]
    was = pt.rng.python("sum", stem_of(ask, r, 0, 9).key).randint(0, 9)
    other = next(key for key in range(99) if pt.rng.python("sum", key).randint(0, 9) != was)
    (made,) = play_on(ask, [Stem(r.prompt, r.turns[:2], 9, other)])
    assert made.failed and "saw something else" in made.info["error"]
    with pytest.raises(pt.UserError, match="has 4 turns; it cannot be played on from turn 5"):
        stem_of(ask, r, 5, 9)
