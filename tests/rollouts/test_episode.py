"""Episodes with environments as strangers write them: what fails is told or counted, and time changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.ranks import Alone, use
from posttrain.core.types import End
from posttrain.rollouts.episode import episodes
from tests.runs import tiny_run

MORE = [{"role": "user", "content": "more"}]
Answer = Callable[[Any, pt.Turn], Any]


class Game:
    """An episode that subclasses nothing."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.turns, self.closed = answer, 0, 0

    def step(self, turn: pt.Turn) -> Any:
        self.turns += 1
        return self.answer(self, turn)

    def close(self) -> None:
        self.closed += 1


class Games(pt.Environment):
    name = "games"

    def __init__(self, answer: Answer, first: str = "policy") -> None:
        self.answer, self.first = answer, first
        self.opened: list[Game] = []

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt.text(f"{split}-{index}", "abcd"[index % 4])

    def first_role(self, prompt: pt.Prompt) -> str:
        return self.first

    def open(self, prompt: pt.Prompt, key: int) -> Any:
        self.opened.append(Game(self.answer))
        return self.opened[-1]


class Ending(tiny_run.LanguagePolicy):
    """Ends every turn by itself, so that length limits do not end episodes."""

    def act(self, *args: Any, **more: Any) -> Any:
        made = super().act(*args, **more)
        for some in made:
            for turn in some:
                turn.stopped = True
        return made


def policy() -> Ending:
    inner = tiny_run.policy()
    return Ending(inner.model, inner.tokenizer, inner.name, inner.stops)


def play(answer: Answer, n: int = 3, max_turns: int = 4, policies: Any = None, **rest: Any) -> tuple[Games, list[Any]]:
    env = Games(answer, **rest)
    prompts = [env.prompt(i) for i in range(2)]
    ask = pt.RolloutRequest(policies or {"policy": policy()}, prompts, pt.Sampling(max_tokens=3), env=env, version=7)
    return env, [r for g in episodes(ask, n, max_turns) for r in g.rollouts]


def test_an_episode_that_subclasses_nothing_is_played_and_closed_once() -> None:
    env, made = play(lambda game, turn: pt.Step(MORE if game.turns < 2 else None, reward=0.5))
    assert [len(r.turns) for r in made] == [2] * 6 and all(r.total == 1.0 for r in made)
    assert [game.closed for game in env.opened] == [1] * 6


def test_an_episode_that_never_ends_stops_at_max_turns() -> None:
    _, made = play(lambda game, turn: pt.Step(MORE, reward=1.0), max_turns=3)
    assert {(len(r.turns), r.stop, r.end, r.total) for r in made} == {(3, "max_turns", End.TRUNCATED, 3.0)}


def test_a_turn_that_was_cut_off_ends_the_episode() -> None:
    env = Games(lambda game, turn: pt.Step(MORE))
    ask = pt.RolloutRequest({"policy": tiny_run.policy()}, [env.prompt(0)], pt.Sampling(max_tokens=1), env=env)
    (group,) = episodes(ask, 2)
    assert all(r.stop == "length" and len(r.turns) == 1 for r in group.rollouts)


def test_latency_changes_nothing() -> None:
    def now(game: Game, turn: pt.Turn) -> pt.Step:
        return pt.Step(
            [{"role": "user", "content": turn.text or "x"}] if game.turns < 3 else None, reward=len(turn.text)
        )

    async def late(game: Game, turn: pt.Turn) -> pt.Step:
        await asyncio.sleep(0.003 * (hash(turn.text) % 5))
        return now(game, turn)

    one, other = play(now)[1], play(late)[1]
    assert [r.total for r in one] == [r.total for r in other]
    for a, b in zip(one, other, strict=True):
        assert torch.equal(a.actions, b.actions) and torch.equal(a.mask_T, b.mask_T) and torch.equal(a.logp_T, b.logp_T)


def test_turns_draw_differently() -> None:
    """The same context at another turn has another random identity: the count of turns is in its key."""
    seen = pt.Observation(torch.tensor([3, 4, 5]))

    class Whole(Ending):
        def act(self, pending: Any, keys: Any, *args: Any, **more: Any) -> Any:
            asked.append([tuple(k) for k in keys])
            return super().act(pending, keys, *args, **more)

    asked: list[list[tuple[int, ...]]] = []
    inner = tiny_run.policy()
    mine = Whole(inner.model, inner.tokenizer, inner.name, inner.stops)
    play(lambda game, turn: pt.Step(seen), policies={"policy": mine})
    every = [key for turn in asked for key in turn]
    assert len(asked) == 4 and len(set(every)) == len(every) == 24
    assert asked[0] == [(pt.rng.key(0, 0, f"train-{p}", i),) for p in range(2) for i in range(3)]


def test_versions_are_those_of_the_request() -> None:
    _, made = play(lambda game, turn: pt.Step(MORE if game.turns < 2 else None))
    assert all(r.versions == (7, 7) for r in made)


def boom(game: Game, turn: pt.Turn) -> pt.Step:
    raise RuntimeError("boom")


WRONG: list[tuple[Answer, str]] = [
    (boom, "RuntimeError: boom"),
    (lambda game, turn: None, "gave NoneType, expected a Step"),
    (lambda game, turn: pt.Step("more"), "got 'more'"),  # type: ignore[arg-type]
    (lambda game, turn: pt.Step(["more"]), "got"),  # type: ignore[list-item]
    (lambda game, turn: pt.Step([]), "got"),
    (lambda game, turn: pt.Step(None, reward="1"), "a reward is a finite number"),  # type: ignore[arg-type]
    (lambda game, turn: pt.Step(None, reward=float("nan")), "a reward is a finite number"),
    (lambda game, turn: pt.Step(None, rewards={"policy": float("inf")}), "a reward is a finite number"),
    (lambda game, turn: pt.Step(None, info="x"), "are dicts"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("answer", "told"), WRONG)
def test_a_wrong_step_is_told_where_all_fail_and_masked_where_some_do(answer: Answer, told: str) -> None:
    with pytest.raises(pt.UserError, match=f"failed in every episode: .*{told}"):
        play(answer)
    count = iter(range(100))
    env, made = play(lambda game, turn: answer(game, turn) if next(count) % 2 else pt.Step(None, reward=1.0))
    assert [r.failed for r in made] == [False, True] * 3 and all(r.reward is None for r in made if r.failed)
    assert all(game.closed == 1 for game in env.opened)


@pytest.mark.parametrize("stop", ["", "quit"])
def test_a_stop_that_is_none_is_refused(stop: str) -> None:
    with pytest.raises(pt.UserError, match="expected one of stop, answered"):
        play(lambda game, turn: pt.Step(None, stop=stop))


def test_a_reward_may_be_a_tensor_and_a_close_may_fail() -> None:
    class Closing(Game):
        def close(self) -> None:
            raise OSError("gone")

    env = Games(lambda game, turn: pt.Step(None, reward=torch.tensor(0.5)))  # type: ignore[arg-type]
    env.open = lambda prompt, key: Closing(env.answer)  # type: ignore[method-assign]
    (group,) = episodes(pt.RolloutRequest({"policy": policy()}, [env.prompt(0)], env=env), 2)
    assert [r.turns[0].reward for r in group.rollouts] == [0.5, 0.5] and type(
        group.rollouts[0].turns[0].reward
    ) is float
    assert group.rollouts[0].info["close_failed"] == "OSError: gone"


@pytest.mark.parametrize(
    ("opened", "told"),
    [(lambda p, k: 1 / 0, "could not begin.*ZeroDivisionError"), (lambda p, k: Game, "the class Game"), (lambda p, k: 3, "gave int"),
     (lambda p: None, "could not begin.*TypeError"), (lambda p, k: None, "gave no episode")],
)  # fmt: skip
def test_an_episode_that_cannot_begin_is_told(opened: Any, told: str) -> None:
    env = Games(boom)
    env.open = opened  # type: ignore[method-assign]
    with pytest.raises(pt.UserError, match=told):
        episodes(pt.RolloutRequest({"policy": policy()}, [env.prompt(0)], env=env), 1)


def test_roles_are_paid_on_their_last_turn_and_one_that_has_not_moved_at_its_first() -> None:
    def answer(game: Game, turn: pt.Turn) -> pt.Step:
        if game.turns == 1:
            return pt.Step(MORE, role="judge", reward=1.0, rewards={"judge": 2.0, "policy": 0.25})
        return pt.Step(None, reward=4.0, rewards={"policy": 8.0, "nobody": 5.0})

    _, made = play(answer, n=1)  # one policy plays both
    assert [(r.role, r.turns[0].reward) for r in made] == [("policy", 9.25), ("judge", 6.0)] * 2


def test_a_reward_for_a_role_that_does_not_exist_is_refused() -> None:
    two = {"policy": policy(), "judge": policy()}
    with pytest.raises(pt.UserError, match="no role named 'jugde'; did you mean 'judge'"):
        play(lambda game, turn: pt.Step(None, rewards={"jugde": 1.0}), policies=two)


class Follows(Alone):
    """Beside another process, for which every episode ended at its first turn."""

    def from_lead(self, mine: Any) -> Any:
        return [pt.Step(None, reward=0.5) if isinstance(x, pt.Step) else x for x in mine]


def test_of_several_processes_all_see_what_the_first_one_saw() -> None:
    """A tool that answers each of them otherwise would part them, and they would wait for one another for ever."""
    before = use(Follows())
    try:
        _, made = play(lambda game, turn: pt.Step(MORE))
    finally:
        use(before)
    assert [(len(r.turns), r.turns[0].reward) for r in made] == [(1, 0.5)] * 6


# ---- environments that do what they should not


def one_of_them(answer: Answer) -> Answer:
    """The first episode that is asked gets this answer, the others end well."""
    first: list[Game] = []

    def step(game: Game, turn: pt.Turn) -> Any:
        first.append(game)
        return answer(game, turn) if game is first[0] else pt.Step(None, reward=1.0)

    return step


async def _cancelled(game: Game, turn: pt.Turn) -> pt.Step:
    raise asyncio.CancelledError("the client gave up")


async def _cancels(game: Game, turn: pt.Turn) -> pt.Step:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task
    raise AssertionError


async def _cancels_itself(game: Game, turn: pt.Turn) -> pt.Step:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    raise AssertionError


def _exits(game: Game, turn: pt.Turn) -> pt.Step:
    raise SystemExit(2)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (_cancelled, "CancelledError"),
        (_cancels, "CancelledError"),
        (_cancels_itself, "CancelledError"),
        (_exits, "SystemExit: 2"),
        (lambda game, turn: pt.Step([{"role": "user", "content": None}]), "a Step has messages"),
        (lambda game, turn: pt.Step([{"role": "user", "content": 5}]), "a Step has messages"),
        (lambda game, turn: pt.Step(MORE, role=None), "the role of a Step is a text"),
        (lambda game, turn: pt.Step(pt.Observation(torch.tensor([[1, 2]]))), "a row of ids"),
        (lambda game, turn: pt.Step(pt.Observation(torch.tensor([0.5]))), "a row of ids"),
    ],
)
def test_what_one_episode_does_masks_that_one(answer: Answer, told: str) -> None:
    env, made = play(one_of_them(answer))
    assert sorted(r.stop for r in made) == ["answered"] * 5 + ["broken"] and [g.closed for g in env.opened] == [1] * 6
    assert told in next(r.info["error"] for r in made if r.failed)


@pytest.mark.parametrize("make", [policy, tiny_run.policy])
def test_ids_that_no_embedding_has_are_told_at_any_turn(make: Any) -> None:
    def answer(game: Game, turn: pt.Turn) -> pt.Step:
        turn.stopped = True
        return pt.Step(pt.Observation(torch.tensor([3, 9999])))

    with pytest.raises(pt.UserError, match="the token id 9999"):
        play(answer, policies={"policy": make()})


def test_every_episode_is_closed_when_something_fails() -> None:
    def interrupted(game: Game, turn: pt.Turn) -> pt.Step:
        raise pt.UserError("stop here")

    env = Games(interrupted)
    ask = pt.RolloutRequest({"policy": policy()}, [env.prompt(0)], pt.Sampling(max_tokens=3), env=env)
    with pytest.raises(pt.UserError, match="stop here"):
        episodes(ask, 3)
    assert [game.closed for game in env.opened] == [1, 1, 1]

    class Unstarted(Game):
        def start(self) -> Any:
            raise OSError("no board")

    class Late(Games):
        def open(self, prompt: pt.Prompt, key: int) -> Any:
            self.opened.append((Unstarted if len(self.opened) == 2 else Game)(self.answer))
            return self.opened[-1]

    env = Late(interrupted)
    with pytest.raises(pt.UserError, match="could not begin an episode of the prompt 'train-0': OSError: no board"):
        episodes(ask.but(env=env), 4)
    assert [game.closed for game in env.opened] == [1, 1, 1]


@pytest.mark.parametrize("at", [1, 4, 6, 9, 12])
def test_an_interrupt_inside_an_environment_ends_the_run(at: int) -> None:
    """Ctrl-C is not lost, whichever episode it comes in; signals reach the main thread only."""
    count = 0

    def answer(game: Game, turn: pt.Turn) -> pt.Step:
        nonlocal count
        count += 1
        if count == at:
            os.kill(os.getpid(), signal.SIGINT)
        return pt.Step(MORE if game.turns < 2 else None, reward=1.0)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            play(answer)
    finally:
        signal.signal(signal.SIGINT, before)
