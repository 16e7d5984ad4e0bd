"""What environments replied is asked once, whatever kills the run: episodes whose every reply is different each time it is asked for."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.protocols import Limits
from posttrain.core.types import End
from posttrain.rollouts.episode import episodes
from posttrain.rollouts.turn_sampler import Samplers
from posttrain.runs.replies import FOLDER, KeptReplies
from tests.rollouts.test_episode import Ending, Games, play, policy
from tests.runs import tiny_run
from tests.runs.test_resume import KILLED, Nursery, ending, same
from tests.runs.test_resume import nursery as nursery

MORE = [{"role": "user", "content": "more"}]


def test_killed_inside_episodes(nursery: Nursery, tmp_path: Path) -> None:
    """Each reply counts how often it was asked for, and takes another time: after any number of kills every one was asked for once."""
    assert nursery.run(tmp_path / "whole" / "run", turns=True) == 0
    whole = ending(tmp_path / "whole" / "run")
    assert {r["stop"] for r in whole["rollouts"]} >= {"answered"} and len(whole["rollouts"]) == 20
    random, kills, folder = Random(3), 0, tmp_path / "killed" / "run"
    while (code := nursery.run(folder, kill_at=random.randint(1, 60), turns=True)) != 0:
        assert code == KILLED
        kills += 1
        assert kills < 200, "the run never gets anywhere"
    assert kills >= 4
    same(ending(folder), whole)
    for base in ("whole", "killed"):
        assert set((tmp_path / base / "asked").read_text().split()) == {"1"}
    assert len(list((folder / FOLDER).iterdir())) <= 4  # of the steps since the oldest checkpoint that is kept


class Counted(pt.Episode):
    """Says which of its turns it replies to, and was built by replies alone."""

    def __init__(self, log: list[str], index: int) -> None:
        self.log, self.index, self.turns = log, index, 0

    def step(self, turn: pt.Turn) -> pt.Step:
        self.turns += 1
        self.log.append(f"{self.index}:{self.turns}")
        return pt.Step(
            [{"role": "user", "content": f"turn {self.turns}"}] if self.turns < 3 else None, reward=self.turns
        )


class Counting(Games):
    def __init__(self, log: list[str]) -> None:
        super().__init__(lambda game, turn: None)
        self.log = log

    def open(self, prompt: pt.Prompt, key: int) -> Any:
        return Counted(self.log, int(prompt.id[-1]))


def rollouts(env: Any, replies: Any) -> list[pt.Rollout]:
    ask = pt.RolloutRequest({"policy": policy()}, [env.prompt(i) for i in range(3)], pt.Sampling(max_tokens=3), env=env, replies=replies)  # fmt: skip
    return [r for g in episodes(ask, 1) for r in g.rollouts]


def alike(a: list[pt.Rollout], b: list[pt.Rollout]) -> None:
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x.actions, y.actions) and torch.equal(x.logp_T, y.logp_T) and x.total == y.total


def test_an_episode_goes_through_what_is_known_before_it_is_asked_more(tmp_path: Path) -> None:
    log: list[str] = []
    first = rollouts(Counting(log), KeptReplies(tmp_path, "train"))
    assert sorted(log) == [f"{i}:{k}" for i in range(3) for k in (1, 2, 3)]
    log.clear()
    alike(rollouts(Counting(log), KeptReplies(tmp_path, "train")), first)
    assert log == []  # all is known
    path = tmp_path / FOLDER / "train-000000"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 2 // 3])  # the last ones are missing, one is half there
    alike(rollouts(Counting(log), KeptReplies(tmp_path, "train")), first)
    assert log and len(log) > 3 and path.read_bytes() == whole


def test_another_turn_has_another_reply(tmp_path: Path) -> None:
    """A reply belongs to what was said: with other weights a step says other things, and none of its replies is taken."""
    log: list[str] = []
    rollouts(Counting(log), KeptReplies(tmp_path, "train"))
    env, kept = Counting(log), KeptReplies(tmp_path, "train")
    other = pt.RolloutRequest({"policy": policy()}, [env.prompt(i) for i in range(3)], pt.Sampling(max_tokens=3), seed=1, env=env, replies=kept)  # fmt: skip
    log.clear()
    episodes(other, 1)
    assert len(log) == 9


def test_the_same_words_at_another_turn_have_another_reply(tmp_path: Path) -> None:
    class Same(Ending):
        def act(self, *args: Any, **more: Any) -> Any:
            made = super().act(*args, **more)
            for (turn,) in made:
                turn.actions = torch.tensor([5])
                turn.logp_T, turn.mask_T, turn.version_T = turn.logp_T[:1], turn.mask_T[:1], turn.version_T[:1]
            return made

    def earned() -> list[list[float | None]]:
        env, inner, kept = Counting(log), policy(), KeptReplies(tmp_path, "train")
        talks = Same(inner.model, inner.tokenizer, inner.name, inner.stops)
        ask = pt.RolloutRequest({"policy": talks}, [env.prompt(0)], pt.Sampling(max_tokens=3), env=env, replies=kept)
        return [[t.reward for t in r.turns] for g in episodes(ask, 2) for r in g.rollouts]

    log: list[str] = []
    assert earned() == earned() == [[1.0, 2.0, 3.0]] * 2 and len(log) == 6


def test_an_episode_that_comes_out_otherwise_when_it_is_repeated_is_told(tmp_path: Path) -> None:
    count = iter(range(100))

    def answer(game: Any, turn: pt.Turn) -> pt.Step:
        return pt.Step([{"role": "user", "content": f"number {next(count)}"}] if game.turns < 3 else None)

    kept = KeptReplies(tmp_path, "train")
    rollouts(Games(answer), kept)
    path = kept.path(0)
    path.write_bytes(path.read_bytes()[:-10])
    (broken,) = [r for r in rollouts(Games(answer), KeptReplies(tmp_path, "train")) if r.failed]
    assert (
        "made again after a restart, gave messages" in broken.info["error"] and "give it replay" in broken.info["error"]
    )


def test_a_prompt_that_comes_twice_gets_its_own_replies_back(tmp_path: Path) -> None:
    """Both say the same, word for word, and a tool whose every answer differs told them different things."""
    count = iter(range(100))

    class Told(pt.Episode):
        def step(self, turn: pt.Turn) -> pt.Step:
            return pt.Step(None, reward=float(next(count)))

    class Telling(Games):
        def open(self, prompt: pt.Prompt, key: int) -> Any:
            return Told()

    def earned() -> list[float]:
        env = Telling(lambda game, turn: None)
        ask = pt.RolloutRequest({"policy": policy()}, [env.prompt(0)] * 3, pt.Sampling(max_tokens=3), env=env, replies=KeptReplies(tmp_path, "train"))  # fmt: skip
        return [r.total for g in episodes(ask, 2) for r in g.rollouts]

    first = earned()
    assert sorted(first) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert earned() == first and next(count) == 6


def test_a_disk_that_takes_half_of_a_reply_is_full(tmp_path: Path) -> None:
    class Short:
        def write(self, data: bytes) -> int:
            return len(data) - 1

        def close(self) -> None: ...

    kept = KeptReplies(tmp_path, "train")
    kept.put(0, b"a" * 16, pt.Step(None))
    assert kept.file is not None
    kept.file.close()
    kept.file = Short()  # type: ignore[assignment]
    with pytest.raises(pt.UserError, match="the disk is full"):
        kept.put(0, b"b" * 16, pt.Step(None))


def test_what_cannot_be_kept_is_told_and_asked_again(tmp_path: Path, capsys: Any) -> None:
    made = rollouts(Games(lambda game, turn: pt.Step(None, info={"what": object()})), KeptReplies(tmp_path, "train"))
    assert [r.stop for r in made] == ["answered"] * 3
    assert "cannot be kept" in capsys.readouterr().err


def test_replies_stay_until_the_oldest_checkpoint_has_passed_their_step(tmp_path: Path) -> None:
    """A damaged checkpoint is not used, and the run goes on from the one before it: the steps in between are made again."""
    kept = KeptReplies(tmp_path, "train")
    for step in range(6):
        kept.put(step, b"n" * 16, pt.Step(None))
    for name in ("train-000002", "train-000004", "other-000000"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    run = SimpleNamespace(checkpoints=tmp_path / "checkpoints")
    kept.on_checkpoint(SimpleNamespace(run=run, phase="train"), 4)
    assert sorted(f.name for f in kept.folder.iterdir()) == ["train-000003", "train-000004", "train-000005"]


# ---- time


@pytest.mark.parametrize("overlap", [0.0, 0.3, 0.5, 1.0])
def test_latency_changes_nothing_at_any_overlap(overlap: float) -> None:
    """The engine samples (the tiny model is a decoder of ours), and replies come in any order."""

    def env(late: bool) -> Games:
        async def answer(game: Any, turn: pt.Turn) -> pt.Step:
            if late:
                await asyncio.sleep(0.004 * (sum(turn.actions.tolist()) % 4))
            return pt.Step([{"role": "user", "content": turn.text[:3] or "x"}] if game.turns < 4 else None, reward=0.5)

        made = Games(answer)
        made.limits = Limits(overlap=overlap)
        return made

    def run(late: bool) -> list[pt.Rollout]:
        games, talks = env(late), tiny_run.policy()
        talks.stops = tuple(range(1, 8))
        ask = pt.RolloutRequest({"policy": talks}, [games.prompt(i) for i in range(4)], pt.Sampling(max_tokens=30), env=games)  # fmt: skip
        return [r for g in episodes(ask, 3) for r in g.rollouts]

    one, other = run(False), run(True)
    assert max(len(r.turns) for r in one) == 4
    alike(one, other)


def test_while_one_waits_for_its_reply_others_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an overlap the engine goes on meanwhile; without one, all wait for a reply as soon as its turn has ended."""
    steps = 0

    def counted(self: Samplers) -> Any:
        nonlocal steps
        steps += 1
        return step(self)

    step = Samplers.step
    monkeypatch.setattr(Samplers, "step", counted)

    def beside(overlap: float) -> int:
        taken = []

        async def answer(game: Any, turn: pt.Turn) -> pt.Step:
            began = steps
            for _ in range(3):
                await asyncio.sleep(0)
            taken.append(steps - began)
            return pt.Step(None)

        games, talks = Games(answer), tiny_run.policy()
        games.limits, talks.stops = Limits(overlap=overlap), (1, 2, 3)
        ask = pt.RolloutRequest({"policy": talks}, [games.prompt(i) for i in range(6)], pt.Sampling(max_tokens=40), env=games)  # fmt: skip
        episodes(ask, 2)
        return max(taken)

    assert beside(0.0) == 0 and beside(0.9) >= 2


def test_free_running_takes_whoever_is_ready() -> None:
    """A reply that needs another episode's turn to have been replied to: with a fixed order it would wait for ever."""
    released = asyncio.Event()

    async def answer(game: Any, turn: pt.Turn) -> pt.Step:
        if game.turns == 1 and game is env.opened[0]:
            await released.wait()
        elif game.turns == 2:
            released.set()
        return pt.Step(MORE if game.turns < 2 else None, reward=1.0)

    env = Games(answer)
    env.limits = Limits(free=True)
    ask = pt.RolloutRequest({"policy": policy()}, [env.prompt(i) for i in range(2)], pt.Sampling(max_tokens=3), env=env)
    made = [r for g in episodes(ask, 1) for r in g.rollouts]
    assert [r.total for r in made] == [2.0, 2.0]


def test_an_environment_that_takes_too_long_is_a_time_out_and_not_a_wait() -> None:
    async def never(game: Any, turn: pt.Turn) -> pt.Step:
        await asyncio.Event().wait()
        raise AssertionError

    env = Games(never)
    env.limits = Limits(seconds=0.05)
    ask = pt.RolloutRequest({"policy": policy()}, [env.prompt(0)], pt.Sampling(max_tokens=3), env=env)
    (group,) = episodes(ask, 2)
    assert [(r.stop, r.end, r.reward) for r in group.rollouts] == [("timeout", End.TRUNCATED, 0.0)] * 2


def test_a_step_that_cannot_be_interrupted_is_late_when_it_is_over() -> None:
    """It blocks the loop, so no timer can end it; what it says comes too late all the same."""

    def blocks(game: Any, turn: pt.Turn) -> pt.Step:
        time.sleep(0.03)
        return pt.Step(MORE, reward=1.0)

    env = Games(blocks)
    env.limits = Limits(seconds=0.02)
    ask = pt.RolloutRequest({"policy": policy()}, [env.prompt(0)], pt.Sampling(max_tokens=3), env=env)
    (group,) = episodes(ask, 1)
    assert [(r.stop, len(r.turns)) for r in group.rollouts] == [("timeout", 1)]


def test_inside_a_running_loop_as_in_a_notebook() -> None:
    async def cell() -> list[Any]:
        return play(lambda game, turn: pt.Step(MORE if game.turns < 2 else None, reward=0.5))[1]

    assert [r.total for r in asyncio.run(cell())] == [1.0] * 6

    async def bad() -> None:
        play(lambda game, turn: pt.Step(None, stop="quit"))

    with pytest.raises(pt.UserError, match="expected one of stop"):
        asyncio.run(bad())


def test_the_sampler_is_the_trainer_over_all_turns() -> None:
    """What was sampled turn by turn, with the context kept in the engine, has the log-probabilities that training computes of the whole row."""
    games, talks = Games(lambda game, turn: pt.Step(MORE if game.turns < 4 else None, reward=1.0)), tiny_run.policy()
    talks.stops = tuple(range(1, 8))
    ask = pt.RolloutRequest({"policy": talks}, [games.prompt(i) for i in range(3)], pt.Sampling(max_tokens=20), env=games)  # fmt: skip
    made = [r for g in episodes(ask, 3) for r in g.rollouts]
    assert max(len(r.turns) for r in made) == 4
    with torch.no_grad():
        logp_BT = talks.forward(made)["logp_BT"]
    for r, logp_T in zip(made, logp_BT, strict=True):
        own_T = r.mask_T
        assert int(own_T.sum()) == sum(len(t) for t in r.turns) < len(own_T) or len(r.turns) == 1
        torch.testing.assert_close(logp_T[: len(own_T)][own_T], r.logp_T[own_T], atol=1e-4, rtol=0)
