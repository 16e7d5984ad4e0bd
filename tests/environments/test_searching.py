"""Searching in turns: a real index of documents, what a turn does, how an episode ends, which documents a question needs."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Step
from posttrain.core.squad import exact, normal, word_f1
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Prompt
from posttrain.environments.data import data
from posttrain.environments.searching import Index, Search, Searching, Trail, action_of, recall, supporting

DOCUMENTS = [
    {"title": "Paris", "text": "Paris is the capital of France."},
    {"title": "Lyon", "text": "Lyon lies on the Rhone."},
    {"title": "Bonn", "text": "Bonn was the capital of West Germany."},
]
ROWS = [
    {"question": "What is the capital of France?", "answer": "Paris", "supporting_facts": [["Paris", 0], ["Lyon", 1]]}
]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    file = tmp_path / "documents.jsonl"
    file.write_text("".join(json.dumps(d) + "\n" for d in DOCUMENTS))
    return Index(str(file))


def said(text: str, stopped: bool = True) -> Turn:
    turn = Turn.of(Observation(torch.tensor([1])), torch.tensor([1]), torch.zeros(1), text)
    turn.stopped = stopped
    return turn


def played(env: Environment, *texts: str) -> list[Step]:
    episode = env.open(env.prompt(0), 7)
    return [asyncio.run(episode.step(said(text))) for text in texts]  # type: ignore[union-attr, arg-type]


def test_answers_are_compared_without_case_marks_and_articles() -> None:
    assert normal("The  Eiffel-Tower, (a) sight!") == "eiffeltower sight"
    assert exact("the paris.", ["Lyon", "Paris"]) and not exact("Paris Texas", ["Paris"]) and not exact("the", ["an"])
    # 3 words said, 2 gold, 2 shared: P = 2/3, R = 1, F1 = 2 * 2 / (3 + 2) = 0.8; the better of two golds counts
    assert word_f1("in New York", ["Boston", "New York"]) == pytest.approx(0.8)
    assert word_f1("", ["x"]) == word_f1("y", ["x"]) == 0.0
    assert word_f1("no no", ["no"]) == pytest.approx(2 / 3)  # a word counts as often as both have it


def test_the_index_ranks_real_documents(index: Index) -> None:
    assert [d.title for d in index.best("capital France", 2)] == ["Paris", "Bonn"]
    assert index.best("?!", 2) == [] == index.best("zebra", 2)
    assert index.best('" OR x NEAR(', 1) == [], "a query is words, never syntax"
    assert index.drawn(2, 1) == index.drawn(2, 1) and len(index.drawn(9, 1)) == 3
    assert copy.deepcopy(index) is index


def test_an_episode_searches_is_told_what_is_wrong_and_answers(index: Index) -> None:
    paid = []

    def pay(prompt: Prompt, trail: Trail) -> float:
        paid.append((trail.queries, trail.answer, [len(some) for some in trail.found]))
        return 0.5

    env = Searching(data(ROWS), index.retrieve(1), pay, turns=3)
    assert env.prompt(0).last.endswith("Question: What is the capital of France?")
    search, wrong, answer = played(env, "<think>hm</think><search>capital of France</search><answer>no</answer>", "hello", "<answer> Paris </answer>")  # fmt: skip
    assert (
        search.messages[0]["content"]
        == "<information>Doc 1 (Title: Paris) Paris is the capital of France.</information>"
    )  # type: ignore[index]
    assert "neither a search nor an answer" in wrong.messages[0]["content"]  # type: ignore[index]
    assert answer.messages is None and answer.reward == 0.5 and answer.stop == "answered" and search.reward is None
    assert answer.info == {"queries": ["capital of France"], "found": [["Paris"]], "answer": "Paris", "searches": 1}
    assert paid == [(["capital of France"], "Paris", [1])]


def test_the_last_turn_is_for_the_answer_alone_and_a_cut_turn_ends_it(index: Index) -> None:
    env = Searching(data(ROWS), index.retrieve(1), lambda prompt, trail: float(len(trail.queries)), turns=1)
    first, last = played(env, "<search>a</search>", "<search>b</search>")
    assert first.messages is not None and (last.messages, last.stop, last.reward) == (None, "max_turns", 1.0)
    cut = asyncio.run(env.open(env.prompt(0), 7).step(said("<search>a", stopped=False)))
    assert (cut.messages, cut.stop, cut.reward) == (None, "length", 0.0)


def test_a_fork_goes_its_own_way(index: Index) -> None:
    env = Searching(data(ROWS), index.retrieve(1), lambda prompt, trail: 0.0, turns=3)
    one = env.open(env.prompt(0), 7)
    asyncio.run(one.step(said("<search>a</search>")))
    other = one.fork()
    assert isinstance(other, Search) and other.trail.queries == ["a"]
    asyncio.run(other.step(said("<search>b</search>")))
    assert one.trail.queries == ["a"] and other.trail.queries == ["a", "b"] and other.env is env


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({"supporting_facts": [["Paris", 0], ["Paris", 1], ["Lyon", 0]]}, {"paris", "lyon"}),
        ({"supporting_facts": {"title": ["Paris"], "sent_id": [0]}}, {"paris"}),
        ({"supporting": ["Bonn "]}, {"bonn"}),
        ({"decomposition": [{"paragraph_support_idx": 1}], "context": [{"title": "A"}, {"title": "B"}]}, {"b"}),
        ({}, set()),
    ],
)
def test_supporting_documents_are_read_in_the_layouts_of_known_sets(row: dict[str, Any], wanted: set[str]) -> None:
    assert supporting(Prompt.text("p", "q", "a", **row)) == wanted


def test_recall_is_the_share_of_supporting_documents_found_so_far(index: Index) -> None:
    prompt = data(ROWS).prompt(0)
    trail = Trail(found=[index.best("capital France", 1), index.best("Rhone", 1)])
    assert [recall(prompt, trail, n) for n in (0, 1, 2, None)] == [0.0, 0.5, 1.0, 1.0]
    assert recall(Prompt.text("p", "q", "a"), trail) == 0.0


def test_mistakes_are_told(index: Index, tmp_path: Path) -> None:
    def pay(prompt: Prompt, trail: Trail) -> float:
        return 0.0

    with pytest.raises(UserError, match="no gold answers to search for"):
        Searching(data([{"question": "q"}]), index.retrieve(1), pay)
    with pytest.raises(UserError, match="turns of its own"):
        Searching(Searching(data(ROWS), index.retrieve(1), pay), index.retrieve(1), pay)
    with pytest.raises(UserError, match="at least one search"):
        Searching(data(ROWS), index.retrieve(1), pay, turns=0)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="has no documents"):
        Index(str(tmp_path / "empty"))
    assert action_of("<search>open") == ("", "") and action_of("<answer>a</answer>") == ("answer", "a")
