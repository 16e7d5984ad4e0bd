"""What agents are tried on in claims: a library whose questions have answers in it, experts who are right part of the time, logged calls."""

from __future__ import annotations

from random import Random

import pytest

from claims.agents_multiturn import agent_r, doctoragent_rl, ssrl, tl_training, toolrl
from claims.agents_multiturn.frugalrag import recall
from claims.machinery.arms import Bench
from claims.worlds.agents import called, expert_runs, spoiled
from claims.worlds.library import HINT, Library
from posttrain.core.squad import exact
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.data import data
from posttrain.environments.gold_calls import gold_calls
from posttrain.environments.searching import plain, supporting
from posttrain.environments.workshop import workshop
from posttrain.environments.workshop.facts_world import world
from posttrain.systems.agents_multiturn.doctoragent_rl import Consulting, Scripted
from posttrain.systems.agents_multiturn.ssrl import blocks
from posttrain.systems.agents_multiturn.tl_training import by_turn
from posttrain.systems.agents_multiturn.toolrl import calls_right, toolrl_form


@pytest.fixture(scope="module")
def library() -> Library:
    with Bench(100) as bench:
        made = Library(bench)
        made.held_out()
        yield made  # type: ignore[misc]


def test_the_chain_of_a_question_is_in_the_documents(library: Library) -> None:
    known = dict(library.documents)
    assert len(known) == len(library.documents) == 18 * 20
    for q in (*library.train[:40], *library.test[:40]):
        for name, value in zip(q.chain, q.chain[1:], strict=False):
            assert f": {value}." in known[name]
            assert name in [d.title for d in library.index.best(name, 3)]  # a search for a name finds it


def test_test_questions_are_about_other_worlds(library: Library) -> None:
    seen = {name for q in library.train for name in q.chain[:-1]}
    assert library.test and seen.isdisjoint(name for q in library.test for name in q.chain[:-1])
    env = library.searching(lambda prompt, trail: 0.0)
    prompt = env.prompt(0, "test")
    assert plain(prompt) and prompt.last.endswith(HINT)
    (q,) = [q for q in library.test if prompt.last == f"{q.text} {HINT}"]
    assert supporting(prompt) == {x.lower() for x in q.chain[:-1]} and prompt.answer == q.chain[-1]


def test_experts_follow_the_chain_or_stop_one_fact_early(library: Library) -> None:
    said = library.shown(60, care=0.5)
    by_text = {f"{q.text} {HINT}": q for q in library.train}
    ends = []
    for conversation in said:
        q = by_text[str(conversation[0]["content"])]
        last = str(conversation[-1]["content"])
        assert last in q.chain[1:]
        ends.append(exact(last, [q.chain[-1]]))
        assert [m["content"] for m in conversation[1:-1:2]] == [
            f"<search>{x}</search>" for x in q.chain[: len(conversation) // 2 - 1]
        ]
    assert 15 < sum(ends) < 45  # half of 60, within four standard deviations
    judged = library.shown(60, care=1.0, judges=True)
    assert all("<judge>" in str(c[-1]["content"]) for c in judged)
    assert sum(len(c) for c in library.shown(60, care=1.0, idle=1.0)) > sum(len(c) for c in library.shown(60, care=1.0))


def test_recall_is_of_the_documents_a_question_rests_on() -> None:
    prompt = Prompt.text("q", "?", "x", supporting=["A", "B"])
    made = [
        Rollout(prompt, [], info={"found": [["a", "c"], ["d"]]}),
        Rollout(prompt, [], info={"found": [["B"], ["A"]]}),
    ]
    assert recall(made) == pytest.approx((0.5 + 1.0) / 2)


def test_runs_of_an_expert_earn_everything_as_often_as_it_is_careful() -> None:
    runs = expert_runs("treasure", 5, 80, care=1.0, level=1)
    assert all(r["earned"] == pytest.approx(1.0) and r["actions"] for r in runs)
    half = expert_runs("treasure", 5, 80, care=0.0, level=1)
    assert sum(r["earned"] > 0.99 for r in half) < 60 and [r["index"] for r in half] == list(range(80))


def test_a_spoiled_call_is_another_call_of_the_same_tool() -> None:
    for i in range(20):
        call = called(workshop("tool_calls", 1).prompt(i))[0]
        other = spoiled(call, Random(i))
        assert other["name"] == call["name"] and len(other["arguments"]) == len(call["arguments"])
        assert other != call or str(call["arguments"]) == str(call["arguments"])[::-1]


def test_logged_calls_in_the_form_are_what_toolrl_pays() -> None:
    row = toolrl.logged("train", 1)  # two look-ups
    assert len(row["answer"]) == 2
    prompt = data(
        {"train": [row], "test": [row | {"messages": row["messages"][:1] + [{"role": "user", "content": "?"}]}]}
    ).prompt(0)
    assert len(gold_calls(prompt)) == 2
    forms = [str(toolrl.shown(3, i)[-1]["content"]) for i in range(60)]
    paid = sum(toolrl_form(prompt, text) for text in forms)
    assert 22 < paid < 50  # six in ten of 60, within four standard deviations
    right = sum(
        calls_right(data({"train": [toolrl.logged("train", 10_000 + i)], "test": [row]}).prompt(0), text)
        for i, text in enumerate(forms)
    )
    assert 5 < right < 35  # 0.4 with one call, 0.16 with two


def test_failed_calls_stand_in_training_dialogues_alone() -> None:
    train, test = ([tl_training.dialogue(split, i, 7) for i in range(40)] for split in ("train", "test"))
    errors = [any("unexpected keyword" in str(m["content"]) for m in row["messages"]) for row in train]
    assert 5 < sum(errors) < 28 and not any("unexpected" in str(row["messages"]) for row in test)
    env = data({"train": train, "test": test})
    kept, whole = (by_turn(env, mask).size("train") for mask in (True, False))
    assert whole - kept == sum(errors)


def test_what_is_remembered_keeps_to_the_form() -> None:
    known = world(3)
    for q in ssrl.questions(Random(0), known, 2, 20):
        names = blocks(str(ssrl.shown(known, q, 1)[-1]["content"]))
        assert names is not None and names[-1] == "answer" and names.count("search") == names.count("information") >= 1


def test_a_run_led_astray_goes_on_from_where_it_is() -> None:
    plain_env = workshop("treasure", 1)
    env = agent_r.Astray(plain_env)
    for i in range(20):
        before, after = plain_env.prompt(i, "test"), env.prompt(i, "test")
        assert after.info["budget"] == before.info["budget"] - 1 and len(after.content) == len(before.content) + 2
        goal = tuple(before.info["treasure"])
        assert agent_r._apart(tuple(after.info["start"]), goal) >= agent_r._apart(tuple(before.info["start"]), goal)
        assert env.open(after, 0).scene.at == after.info["start"]


def test_dialogues_are_consultations_of_the_plan() -> None:
    rows = [doctoragent_rl.case("train", i) for i in range(30)]
    env = Consulting(data({"train": rows, "test": [doctoragent_rl.case("test", 0)]}), Scripted(), doctoragent_rl.BUDGET)
    every = [
        [doctoragent_rl.case(s, i) for i in range(n)]
        for s, n in (("train", doctoragent_rl.CASES), ("test", doctoragent_rl.PROBLEMS))
    ]
    known = data({"train": every[0], "test": every[1]})
    assert known.size("train") == doctoragent_rl.CASES, "no patient of training is left out as one of the held-out ones"
    made = doctoragent_rl.dialogues(env, 1, 20)
    asked = [
        sum("<question>" in str(m["content"]) and m["role"] == "assistant" for m in row["messages"]) for row in made
    ]
    assert all("<diagnosis>" in str(row["messages"][-1]["content"]) for row in made)
    assert 0 in asked and max(asked) >= 2  # decided at once, and asked first
