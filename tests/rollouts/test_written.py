"""Written preferences as groups: how sure a pair is, ranked lists, good and bad answers, and answers to other prompts."""

from __future__ import annotations

import math

import pytest

from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Origin, Prompt
from posttrain.rollouts.written import labels, lists, pairs
from tests.models import tiny


def made(part, *prompts: Prompt, positions: int = 64, **options):
    policy = tiny.policy(tiny.decoder(max_positions=positions))
    return part.but(**options)(RolloutRequest({"policy": policy}, list(prompts), Sampling(), 0, 0, None))


def ask(i: int, text: str = "", **info) -> Prompt:
    return Prompt.text(f"p{i}", text or f"q{i}", None, **info)


def test_a_pair_says_how_sure_it_is():
    groups = made(pairs, ask(0, chosen="a", rejected="b", preferred=0.8), ask(1, chosen="c", rejected="d"))
    assert [g.strengths for g in groups] == [(0.8,), (1.0,)] and [g.pairs for g in groups] == [((0, 1),)] * 2
    _, batch = assemble(groups)
    assert batch["preferred_P"].tolist() == pytest.approx([0.8, 1.0]) and batch["chosen_P"].tolist() == [0, 2]


def test_a_list_is_a_group_with_a_ranking():
    ranked = [{"text": "aa", "score": 2.5}, {"text": "b", "score": 1.0}, {"text": "c", "score": -1.0}]
    groups = made(lists, ask(0, ranked=ranked), ask(1, ranked=[{"text": "x"}, {"text": "y"}]))
    assert [[r.text for r in g.rollouts] for g in groups] == [["aa", "b", "c"], ["x", "y"]]
    assert [[r.reward for r in g.rollouts] for g in groups] == [
        [2.5, 1.0, -1.0],
        [0.0, -1.0],
    ]  # minus the place where there is no score
    assert [g.ranking for g in groups] == [(0, 1, 2), (0, 1)]
    _, batch = assemble(groups)
    assert batch["ranked_LK"].tolist() == [[0, 1, 2], [3, 4, -1]]
    with pytest.raises(UserError, match="has 1 ranked answers, and this learns from lists of at least 2"):
        made(lists, ask(0, ranked=ranked[:1]))


def test_a_label_is_a_component_of_the_reward():
    groups = made(labels, ask(0, response="a", label=True), ask(1, response="b", label=False))
    assert [len(g.rollouts) for g in groups] == [1, 1]
    assert [(r.text, r.reward, r.rewards) for g in groups for r in g.rollouts] == [
        ("a", 1.0, {"label": 1.0}), ("b", 0.0, {"label": 0.0}),
    ]  # fmt: skip
    for bad in (ask(0, response="a"), ask(0, response="a", label="yes"), ask(0, label=True)):
        with pytest.raises(UserError, match="no answer with a label"):
            made(labels, bad)


def test_mismatched_answers_are_those_of_the_next_prompt_that_asks_something_else():
    some = [
        ask(0, "q", response="a", label=True), ask(1, "q", response="b", label=False), ask(2, "r", response="c", label=True),
    ]  # fmt: skip
    groups = made(labels, *some, mismatched=True)
    assert [[r.text for r in g.rollouts] for g in groups] == [["a", "c"], ["b", "c"], ["c", "a"]]
    assert all(r.prompt.id == g.prompt.id and r.origin is Origin.WRITTEN for g in groups for r in g.rollouts)
    assert all(r.rewards == {} and r.reward is None for g in groups for r in g.rollouts[1:])
    _, batch = assemble(groups)
    assert [math.isnan(x) for x in batch["label_B"].tolist()] == [False, True] * 3
    for alone in (some[:1], some[:2]):
        with pytest.raises(UserError, match="no two different prompts; use --prompts 2"):
            made(labels, *alone, mismatched=True)


def test_a_mismatched_answer_is_cut_where_the_window_ends():
    short, long = ask(0, "q" * 50, response="a", label=True), ask(1, "r", response="b" * 40, label=True)
    first, second = made(labels, short, long, mismatched=True)
    other = first.rollouts[1]
    assert (
        len(other.context) + len(other) == 64
        and len(other) < 41
        and len(other.logp_T) == len(other.mask_T) == len(other)
    )
    assert len(second.rollouts[1]) == 2  # "a" and its end
