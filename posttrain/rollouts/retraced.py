"""Going back into an episode: its actions are made again in a fresh one, and the policy goes on from there.

Every episode of a prompt has the same key here, so that the same actions lead to the same state whoever made them.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.adopt import adopt_episode
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Episode, RolloutRequest, Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Message, Prompt
from posttrain.rollouts.episode import episodes, in_a_loop


@dataclass(frozen=True)
class Path:
    """A way through an episode: what was said at each turn, what the environment replied, what it was worth in all."""

    prompt: Prompt
    texts: tuple[str, ...] = ()
    replies: tuple[tuple[Message, ...], ...] = ()  # after each turn; none after one that ended it
    rewards: tuple[float, ...] = ()
    ended: bool = False

    @property
    def worth(self) -> float:
        return sum(self.rewards)

    def first(self, turns: int) -> Path:
        """The first so many turns."""
        whole = turns >= len(self.texts)
        cut = {k: getattr(self, k)[:turns] for k in ("texts", "replies", "rewards")}
        return self if whole else replace(self, **cut, ended=False)

    @property
    def messages(self) -> list[Message]:
        """The conversation, from the prompt on."""
        out: list[Message] = list(self.prompt.content)
        for text, reply in zip(self.texts, self.replies, strict=True):
            out += [{"role": "assistant", "content": text}, *reply]
        return out


@dataclass
class Retraced(Episode):
    """An episode that begins behind some turns of another, and notes its own."""

    episode: Episode
    path: Path
    most: int
    info: dict[str, Any] = field(default_factory=dict)

    async def made(self, text: str) -> None:
        """Make a turn again that somebody made before."""
        turn = Turn.of(
            Observation(torch.zeros(0, dtype=torch.long)), torch.zeros(0, dtype=torch.long), torch.zeros(0), text
        )
        await self.step(turn)

    async def step(self, turn: Turn) -> Step:
        said: Any = self.episode.step(turn)
        step: Step = await said if inspect.isawaitable(said) else said
        if isinstance(step.messages, Observation) or step.role != "policy":
            raise UserError(
                f"{type(self.episode).__name__} shows more than messages, or to others; its turns cannot be made again from their texts"
            )
        p, reply = self.path, tuple(step.messages or ())
        over = step.messages is None or len(p.texts) + 1 >= self.most
        self.path = replace(p, texts=(*p.texts, turn.text), replies=(*p.replies, reply), rewards=(*p.rewards, step.reward or 0.0), ended=over)  # fmt: skip
        step = step if step.messages is None or not over else replace(step, messages=None, stop="max_turns")
        return replace(step, info={**step.info, "path": self.told()})

    def told(self) -> list[Any]:
        return [list(self.path.texts), [list(r) for r in self.path.replies], list(self.path.rewards)]


def retrace(env: Environment, prompt: Prompt, texts: Sequence[str]) -> Path:
    """What comes of these turns in the environment; turns behind its end are left out."""
    return opened(env, prompt, texts).path


def opened(env: Environment, prompt: Prompt, texts: Sequence[str]) -> Retraced:
    found = env.open(prompt, rng.key("retraced", prompt.id))
    if found is None:
        raise UserError(
            f"{env.name} has no turns, so none can be made again; use a task with episodes: --task mine.py:Game, or "
            "--task treasure --model pocket-2"
        )
    episode = adopt_episode(found, env.name)
    if episode.start() is not None:
        raise UserError(
            f"{env.name} begins with an observation of its own; episodes are made again from messages alone"
        )
    again = Retraced(episode, Path(prompt), env.limits.turns)

    async def walk() -> None:
        for text in texts:
            if not again.path.ended:
                await again.made(text)

    in_a_loop(walk())
    return again


class Behind(Environment):
    """The environment, each prompt behind the turns of a path."""

    def __init__(self, env: Environment, starts: Sequence[Path]) -> None:
        self.env, self.name, self.limits = env, env.name, env.limits
        self.starts = {f"{p.prompt.id}@{i}": p for i, p in enumerate(starts)}
        self.prompts = [replace(p.prompt, id=name, content=tuple(p.messages)) for name, p in self.starts.items()]

    def open(self, prompt: Prompt, key: int) -> Retraced:
        start = self.starts[prompt.id]
        return opened(self.env, start.prompt, start.texts)


def continued(ask: RolloutRequest, starts: Sequence[Path], n: int = 1) -> list[list[Path]]:
    """n ways on from each of these paths, to their ends; one that has ended stays as it is."""
    going = [p for p in starts if not p.ended]
    behind = Behind(ask.env, going)
    groups = iter(episodes(ask.but(env=behind, prompts=behind.prompts), n) if going else [])
    out = []
    for start in starts:
        made = (
            [start] * n
            if start.ended
            else [of_info(start, r.info["path"]) for r in next(groups).rollouts if "path" in r.info]
        )
        out.append(made)
    return out


def of_info(start: Path, told: list[Any]) -> Path:
    texts, replies, rewards = told
    return Path(start.prompt, tuple(texts), tuple(map(tuple, replies)), tuple(rewards), ended=True)
