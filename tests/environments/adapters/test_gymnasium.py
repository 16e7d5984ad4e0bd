"""Gymnasium's own environments, and some as strangers register them, played in words."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from posttrain.core.errors import UserError
from posttrain.environments.adapters.gymnasium import Gymnasium, replayed
from posttrain.environments.task import task
from tests.environments.adapters.said import seen, turn

gym = pytest.importorskip("gymnasium", reason="needs the extra: pip install 'posttrain[gym]'")

LAKE = "gymnasium(id='FrozenLake-v1', is_slippery=False)"


class Box(gym.Env):
    """Where everything is what a test says.

    ## Description
    Not part of the rules.
    """

    metadata: dict[str, Any] = {"render_modes": []}

    def __init__(self, acts: Any, sees: Any = None, chance: str = "own") -> None:
        self.action_space, self.observation_space, self.chance = acts, sees or gym.spaces.Discrete(100), chance
        self.held = (x for x in ())  # a generator cannot be copied

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self.look(), {}

    def look(self) -> Any:
        if type(self.observation_space).__name__ != "Discrete":
            self.observation_space.seed(int(self.np_random.integers(1 << 30)))
            return self.observation_space.sample()
        return random.randrange(100) if self.chance == "elsewhere" else int(self.np_random.integers(100))

    def step(self, action: Any) -> Any:
        return self.look(), 0.5, False, False, {"action": action}


gym.register("Test/Box-v0", entry_point=Box)


def test_a_lake_is_crossed_in_words() -> None:
    env = task(LAKE)
    prompt = env.prompt(3)
    assert prompt == env.prompt(3) and prompt.id != env.prompt(3, "test").id
    assert "[S]FFF" in prompt.last and "Answer with one of: left, down, right, up." in prompt.last
    play = env.open(prompt, 1)
    assert play is not None
    steps = [play.step(turn(f"I go {way}.")) for way in ("down", "DOWN", "right", "right", "down", "right")]
    assert (
        [s.reward for s in steps] == [0.0] * 5 + [1.0] and steps[-1].messages is None and steps[-1].stop == "answered"
    )
    assert seen(steps[0]).splitlines()[1:] == ["SFFF", "[F]HFH", "FFFH", "HFFG"]


def test_the_time_limit_of_the_package_is_max_turns() -> None:
    env = task("gymnasium(id='CliffWalking-v1', max_episode_steps=2)")
    play = env.open(env.prompt(0), 1)
    first, second = play.step(turn("up")), play.step(turn("up"))
    assert (first.reward, second.reward, second.messages, second.stop) == (-1.0, -1.0, None, "max_turns")


def test_siblings_begin_alike_and_have_their_own_luck_which_a_key_repeats() -> None:
    env = task("gymnasium(id='Blackjack-v1')")
    prompt = env.prompt(2)
    assert "your sum" in prompt.last and "stick, hit" in prompt.last
    drawn = {key: seen(env.open(prompt, key).step(turn("hit"))) for key in range(6)}
    assert len(set(drawn.values())) > 1
    assert drawn == {key: seen(env.open(prompt, key).step(turn("hit"))) for key in range(6)}


def test_no_action_is_corrected_and_three_in_a_row_end_the_episode() -> None:
    env = task("gymnasium(id='FrozenLake-v1', is_slippery=False, penalty=-0.1)")
    play = env.open(env.prompt(0), 1)
    assert seen(play.step(turn("well"))) == "That names no action. Answer with one of: left, down, right, up."
    assert seen(play.step(turn("up or down"))).startswith("That names several actions: up, down.")
    play.step(turn("left"))  # one that is right begins the count anew
    steps = [play.step(turn(text)) for text in ("<think>left", "", "upwards")]
    assert "its thought has no end" in seen(steps[0]) and steps[2].messages is None
    assert [s.reward for s in steps] == [-0.1] * 3 and steps[2].stop == "content"


def test_a_turn_that_was_cut_off_does_nothing() -> None:
    env = task(LAKE)
    play = env.open(env.prompt(0), 1)
    assert "too long" in seen(play.step(turn("down", stopped=False))) and not play.done  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "spec", [LAKE, "gymnasium(id='Taxi-v4')", "gymnasium(id='Blackjack-v1')", "gymnasium(id='CartPole-v1')"]
)
def test_a_fork_and_a_replay_go_on_alike(spec: str) -> None:
    env = task(spec)
    play = env.open(env.prompt(1), 9)
    assert play is not None
    action = {"Taxi": "south", "Blackjack": "hit", "CartPole": "left"}.get(env.kind, "down")  # type: ignore[attr-defined]
    play.step(turn(action))
    forked, again = play.fork(), replayed(play)  # type: ignore[arg-type]
    assert [forked.step(turn(action)), again.step(turn(action))] == [play.step(turn(action))] * 2


def test_what_cannot_be_copied_is_replayed_and_what_differs_is_told() -> None:
    env = Gymnasium("Test/Box-v0", acts=gym.spaces.Discrete(3))
    play: Any = env.open(env.prompt(0), 4)
    play.step(turn("2"))
    forked = play.fork()
    assert forked.env is not play.env and forked.done == play.done
    assert forked.step(turn("0")) == play.step(turn("0"))
    play.done[0] = (play.done[0][0], "something else")
    with pytest.raises(UserError, match="it cannot be replayed"):
        play.fork()


@pytest.mark.parametrize(
    ("acts", "text", "action"),
    [
        (gym.spaces.Discrete(3, start=-1), "-1", -1),
        (gym.spaces.Discrete(500), "number 499", 499),
        (gym.spaces.MultiDiscrete([3, 2]), "2 and 1", [2, 1]),
        (gym.spaces.MultiBinary(3), "1 0 1", [1, 0, 1]),
        (gym.spaces.Box(-2.0, 2.0, (2,)), "-1.5, 2e0", [-1.5, 2.0]),
        (gym.spaces.Text(5), "<think>x</think> hello", "hello"),
        (gym.spaces.MultiDiscrete([3, 2]), "2 2", "That is out of range"),
        (gym.spaces.MultiDiscrete([3, 2]), "1.5 1", "That is out of range"),
        (gym.spaces.Box(-2.0, 2.0, (2,)), "1", "That has 1 numbers. Answer with 2 numbers: from -2 to 2, from -2 to 2."),
        (gym.spaces.Text(5), "far too long", "That cannot be said here"),
    ],
)  # fmt: skip
def test_actions_of_every_space_that_a_text_can_name(acts: Any, text: str, action: Any) -> None:
    env = Gymnasium("Test/Box-v0", acts=acts)
    play: Any = env.open(env.prompt(0), 4)
    step = play.step(turn(text))
    if isinstance(action, str) and not play.done:
        assert action in seen(step)
    else:
        assert np.array_equal(play.done[0][0], action) and step.reward == 0.5


def test_what_is_seen_as_a_text() -> None:
    spaces = gym.spaces.Dict(
        {"at": gym.spaces.Box(-1, 1, (2, 2)), "on": gym.spaces.MultiBinary(2), "word": gym.spaces.Text(4)}
    )
    env = Gymnasium("Test/Box-v0", acts=gym.spaces.Discrete(2), sees=spaces)
    lines = env.prompt(0).info["seen"].splitlines()
    assert (
        lines[0].startswith("at: ")
        and len(lines) == 4
        and lines[2].startswith("on: ")
        and lines[3].startswith("word: ")
    )
    named = task("gymnasium(id='CartPole-v1', labels=('a', 'b', 'c', 'd'))").prompt(0).info["seen"]
    assert named.split()[::2] == ["a", "b", "c", "d"]
    assert env.rules == "Where everything is what a test says."


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("gymnasium", "name the environment: --task"),
        ("gymnasium(id='FrozenLak-v1')", "did you mean 'FrozenLake-v1'"),
        ("gymnasium(id='FrozenLake-v1', slippery=False)", "unexpected keyword argument 'slippery'"),
        ("gymnasium(id='FrozenLake-v1', actions='go stop')", r"actions has 2 names \(go, stop\); expected 4"),
        ("gymnasium(id='FrozenLake-v1', faults=0)", "faults is 0"),
        ("gymnasium(id='FrozenLake-v1', map_name=None)", "begins otherwise with the same seed"),
        ("gymnasim(id='FrozenLake-v1')", "did you mean 'gymnasium'"),
    ],
)
def test_mistakes_are_one_sentence(spec: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        task(spec)


def test_a_wrapped_environment_has_the_actions_of_its_wrapper() -> None:
    class Spoken(gym.ActionWrapper):
        def __init__(self) -> None:
            super().__init__(gym.make("CliffWalking-v1"))
            self.action_space = gym.spaces.Text(9)

        def action(self, action: str) -> int:
            return len(action) % 4

    gym.register("Test/Spoken-v0", entry_point=Spoken)
    env = Gymnasium("Test/Spoken-v0")
    assert (
        "a text of 1 to 9 characters" in env.prompt(0).last
        and env.open(env.prompt(0), 1).step(turn("abcd")).reward == -1.0
    )


def test_settings_of_other_tasks_are_refused() -> None:
    with pytest.raises(UserError, match="the task gymnasium has no option 'think'"):
        task(LAKE, think=True)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        ({"acts": gym.spaces.Discrete(2), "sees": gym.spaces.Box(0, 1, (8, 9))}, "shows 72 numbers"),
        ({"acts": gym.spaces.Dict({})}, "cannot be played in words: its actions are Dict"),
        ({"acts": gym.spaces.Box(0, 1, (17,))}, "cannot be played in words"),
        ({"acts": gym.spaces.Discrete(2), "chance": "elsewhere"}, "begins otherwise"),
    ],
)
def test_what_a_text_cannot_play_is_refused(make: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Gymnasium("Test/Box-v0", **make)
