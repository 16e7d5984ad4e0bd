"""TextWorld: games made by seed and kept, played by commands; nothing but the game's own verbs reaches its interpreter."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.environments.adapters.textworld import TextWorld, replayed
from posttrain.environments.task import task
from tests.environments.adapters.said import seen, turn

pytest.importorskip("textworld", reason="needs the extra: pip install 'posttrain[textworld]'")

GAME = "textworld(rooms=2, objects=3, quest=2, games=1, tests=1)"


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache folder of its own, so that the game is made here, once."""
    folder = tmp_path_factory.mktemp("cache")
    before = os.environ.get("POSTTRAIN_CACHE")
    os.environ["POSTTRAIN_CACHE"] = str(folder)
    yield folder
    os.environ.pop("POSTTRAIN_CACHE") if before is None else os.environ.update(POSTTRAIN_CACHE=before)


@pytest.fixture
def env(kept: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    return task(GAME)


def solution(env: Any) -> list[str]:
    """The commands that win, as the package knows them."""
    game = env.tw.start(str(env.file("train", 0)), env.tw.EnvInfos(policy_commands=True))
    return list(game.reset().policy_commands)


def test_a_game_is_made_once_and_won_for_one(env: Any, kept: Path) -> None:
    prompt = env.prompt(0)
    assert "$$" not in prompt.last and prompt.last.endswith("open chest.") and "-=" in prompt.last
    assert env.prompt(7) == prompt  # one game: passes repeat it
    made = [p.stat().st_mtime_ns for p in sorted(kept.rglob("game.*"))]
    assert len(made) == 3
    play = task(GAME).open(prompt, 5)
    steps = [play.step(turn(command)) for command in solution(env)]  # type: ignore[union-attr]
    assert sum(s.reward for s in steps) == 1.0 and steps[-1].messages is None  # type: ignore[union-attr,misc]
    assert steps[-1].stop == "answered" and steps[-1].info == {"won": True}  # type: ignore[union-attr]
    assert [p.stat().st_mtime_ns for p in sorted(kept.rglob("game.*"))] == made


@pytest.mark.parametrize(
    "text",
    ["save", "script", "restart", "quit", "SAVE.", "look. save", "look then save", "tw-print max_score", "print_state"],
)
def test_commands_of_the_interpreter_never_reach_it(env: Any, tmp_path: Path, text: str) -> None:
    play = env.open(env.prompt(0), 5)
    told = seen(play.step(turn(text)))
    assert "no verb here" in told or "more than one command" in told
    assert not play.done and list(tmp_path.iterdir()) == []


def test_what_the_game_does_not_know_is_corrected_and_ends_it_at_last(env: Any) -> None:
    play = env.open(env.prompt(0), 5)
    steps = [play.step(turn(text)) for text in ("take moon", "", "<think>look", "dance")]
    assert seen(steps[0]) == "You can't see any such thing." and "says nothing" in seen(steps[1])
    assert seen(play.step(turn("look"))) and play.faults.count == 0
    steps = [play.step(turn("take moon")) for _ in range(5)]
    assert steps[-1].messages is None and steps[-1].stop == "content"


def test_steps_are_limited_and_a_cut_off_turn_does_nothing(env: Any) -> None:
    short = TextWorld(rooms=2, objects=3, quest=2, games=1, tests=1, max_steps=2)
    play: Any = short.open(env.prompt(0), 5)
    assert "too long" in seen(play.step(turn("look", stopped=False))) and not play.done
    first, last = play.step(turn("look")), play.step(turn("dance"))
    assert first.messages and last.messages is None and last.stop == "max_turns"


def test_commands_are_shown_when_asked_for(env: Any) -> None:
    shown = TextWorld(rooms=2, objects=3, quest=2, games=1, tests=1, commands=True)
    assert "You can: " in shown.prompt(0).last and "inventory, look" in shown.prompt(0).last
    assert "You can: " not in env.prompt(0).last


def test_a_fork_and_a_replay_go_on_alike(env: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    play = env.open(env.prompt(0), 5)
    play.step(turn(solution(env)[0]))
    others = [play.fork(), replayed(play)]
    monkeypatch.setattr(type(play.env), "copy", lambda self: 1 / 0)
    others.append(play.fork())  # by replay
    ways = [[x.step(turn(text)) for text in ("inventory", "look")] for x in [play, *others]]
    assert all(way == ways[0] for way in ways) and len({id(x.env) for x in [play, *others]}) == 4
    play.done[0] = (play.done[0][0], "else")
    with pytest.raises(UserError, match="it cannot be replayed"):
        play.fork()


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("textworld(room=3)", "no setting of textworld named 'room'; did you mean 'rooms'"),
        ("textworld(game='cokking')", "did you mean 'cooking'"),
        ("textworld(game='cooking', cuts=True)", "no setting of textworld cooking named 'cuts'"),
        ("textworld(tests=0)", "tests of textworld is 0"),
        ("textworld(faults=0)", "faults is 0"),
    ],
)
def test_mistakes_are_one_sentence(spec: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        task(spec)


def test_a_game_that_cannot_be_made_is_told_and_leaves_nothing(kept: Path) -> None:
    broken = TextWorld(game="cooking", go=5)
    with pytest.raises(UserError, match=r"could not make a game with .*only have"):
        broken.prompt(0)
    assert list(broken.folder.iterdir()) == []
