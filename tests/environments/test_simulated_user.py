"""A user who tells what is asked for, by a script or as a second model that does not learn."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.errors import UserError
from posttrain.environments.mixed import Mixed
from posttrain.environments.simulated_user import ASK, LOST, SimulatedUser
from posttrain.environments.task import task
from posttrain.rollouts.sample import sample
from posttrain.runs.users import users
from tests.cli.conftest import call
from tests.environments.adapters.said import seen, turn
from tests.models import tiny
from tests.rollouts.test_episode import Ending
from tests.runs import tiny_run

ROWS: list[dict[str, Any]] = [
    {"opening": "a table", "facts": {"day|date": "Friday", "people": "four or five"}},
    {"opening": "a train", "facts": {"where": "Oslo"}, "answer": "the night train"},
    {"opening": "a room", "facts": {"nights": "two"}},
]


def test_the_script_tells_what_is_asked_for_and_pays_for_the_facts() -> None:
    env = SimulatedUser(ROWS, patience=4)
    prompt = env.prompt(0)
    assert (
        prompt.last == f"a table\n{ASK}" and env.size("train") == 2 and env.prompt(0, "test").last.startswith("a room")
    )
    talk = env.open(prompt, 1)
    assert seen(talk.step(turn("How many PEOPLE, and on which date?"))) == "people: four or five."
    assert (
        seen(talk.step(turn("<think>the day?</think>Someday?"))) == LOST
    )  # thoughts are not heard, nor is half a word
    assert seen(talk.step(turn("Which day?"))) == "day: Friday."
    end = talk.step(turn("<answer>friday, four or five</answer>"))
    assert end == pt.Step(None, reward=1.0)
    both = SimulatedUser(ROWS, reveal=2).open(prompt, 1).step(turn("People and day?"))
    assert seen(both) == "people: four or five. day: Friday."


@pytest.mark.parametrize(
    ("place", "said", "worth"),
    [
        (0, "Friday", 0.5),
        (0, "Fridays for four", 0.0),
        (
            0,
            "monday tuesday wednesday thursday friday saturday sunday " * 3 + "four or five",
            0.0,
        ),  # everything says nothing
        (1, "The night train.", 1.0),
        (1, "Oslo", 0.0),
    ],
)
def test_what_an_answer_is_worth(place: int, said: str, worth: float) -> None:
    env = SimulatedUser(ROWS)
    assert env.open(env.prompt(place), 1).step(turn(f"<answer>{said}</answer>")).reward == worth


def test_patience_ends_and_an_answer_that_is_cut_off_is_none() -> None:
    env = SimulatedUser(ROWS, patience=2)
    talk = env.open(env.prompt(0), 1)
    assert talk.step(turn("<answer>Friday</answer>", stopped=False)).messages
    last = talk.step(turn("day?"))
    assert (last.messages, last.reward, last.stop) == (None, 0.0, "max_turns")


def test_a_model_is_told_the_facts_once_and_speaks_for_itself() -> None:
    env = SimulatedUser(ROWS, user="model")
    talk = env.open(env.prompt(0), 1)
    first = talk.step(turn("Which day?"))
    assert first.role == "user" and [m["role"] for m in first.messages] == ["system", "user"]  # type: ignore[union-attr]
    assert "day: Friday; people: four or five" in first.messages[0]["content"]  # type: ignore[index,union-attr]
    back = talk.step(turn("<think>hm</think>On Friday"))
    assert back.role == "policy" and back.messages == [{"role": "user", "content": "On Friday"}] and back.reward is None
    again = talk.step(turn("How many?"))
    assert again.messages == [{"role": "user", "content": "How many?"}] and again.role == "user"


def test_rollouts_of_a_user_who_only_plays_are_left_out() -> None:
    env = SimulatedUser([{"opening": "abc", "facts": {"x": "y"}}] * 3, user="model", patience=3)
    made = {role: Ending(tiny.decoder(), tiny.letters(), role) for role in ("policy", "user")}
    ask = pt.RolloutRequest(made, [env.prompt(0)], pt.Sampling(max_tokens=3), env=env)
    (both,) = sample.but(n=2)(ask)
    made["user"].only_plays = True  # type: ignore[assignment]
    (group,) = sample.but(n=2)(ask)
    assert {r.role for r in both.rollouts} == {"policy", "user"} and [r.role for r in group.rollouts] == ["policy"] * 2
    mine = [r for r in both.rollouts if r.role == "policy"]
    assert all(torch.equal(a.actions, b.actions) for a, b in zip(mine, group.rollouts, strict=True))
    assert [len(r.turns) for r in group.rollouts] == [3, 3]


def test_a_frozen_model_speaks_in_a_run_and_only_the_policy_learns(tmp_path: Path) -> None:
    file = tmp_path / "abc.jsonl"
    file.write_text("".join(json.dumps({"opening": "abc", "facts": {"x": "y"}}) + "\n" for _ in range(4)))
    model, user = (
        tiny.saved(tiny.random_hf("llama", tiny.SIZE | {"max_position_embeddings": 512}), tmp_path / name)
        for name in ("model", "person")
    )
    kept = {f.name: f.read_bytes() for f in Path(user).iterdir()}
    asked = f"simulated_user(file='{file}', user='model', patience=2)"
    small = "--name talk --steps 1 --prompts 2 --num-generations 2 --eval-problems 1 --sampling.max-tokens 4 --advantage turns"
    argv = ["run", "grpo", "--model", model, "--task", asked, "--runs", str(tmp_path / "runs"), *small.split()]
    said = call(*argv)
    assert said.code == 2 and "is a model; name one: --user" in said.err
    assert call(*argv, "--user", user).code == 0
    with sqlite3.connect(tmp_path / "runs" / "talk" / "run.sqlite") as db:
        assert db.execute("SELECT role, COUNT(*) FROM rollouts GROUP BY role").fetchall() == [("policy", 4)]
    assert {f.name: f.read_bytes() for f in Path(user).iterdir()} == kept
    found = json.loads(
        call("eval", "--model", "talk", "--runs", str(tmp_path / "runs"), "--problems", "1", "--json").out
    )
    assert found["problems"] == 1 and sum(found["stops"].values()) == 1  # with the run's own user
    other = call(*argv, "--user", "pocket")
    assert other.code == 2 and "user" in other.err  # another user is another run


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    for row, told in (
        ({"facts": {"a": "b"}}, "has no opening"),
        ({"opening": "x", "facts": {}}, "has no facts"),
        ({"opening": "x", "facts": {"|": "b"}}, "has no facts"),
    ):
        with pytest.raises(UserError, match=told):
            SimulatedUser([row, row])
    for spec, told in (
        ("simulated_user", "name a file"),
        ("simulated_user(file='x.jsonl', usr=1)", "did you mean 'user'"),
    ):
        with pytest.raises(UserError, match=told):
            task(spec)
    with pytest.raises(UserError, match="use 'script', or 'model'"):
        SimulatedUser(ROWS, user="robot")
    with pytest.raises(UserError, match="it needs two at least"):
        SimulatedUser(ROWS[:1])
    with pytest.raises(UserError, match="leave --user away"):
        users(pt.Config(user="pocket"), tiny_run.Count(), tmp_path)
    with pytest.raises(UserError, match="no model plays a user"):
        users(pt.Config(user="pocket"), SimulatedUser(ROWS), tmp_path)
    mixed = Mixed({"talk": SimulatedUser(ROWS, user="model"), "count": tiny_run.Count()})
    with pytest.raises(UserError, match="is a model; name one"):
        users(pt.Config(), mixed, tmp_path)
    with pytest.raises(UserError, match="leave --sampler"):
        users(pt.Config(user="pocket", lag=1), SimulatedUser(ROWS, user="model"), tmp_path)
