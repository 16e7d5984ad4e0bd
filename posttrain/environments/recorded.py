"""An environment that writes down what it says: `Rollout.info["replies"]` has the messages after each turn, for files of episodes."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from posttrain.core.adopt import adopt_episode
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.mapped import Mapped

Reply = tuple[str, list[Message]]  # who moves next, and what that role is told


class Recorded(Mapped):
    """The same environment; only the information of its steps has more."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env, lambda prompt, split: prompt)

    def open(self, prompt: Prompt, key: int) -> Episode | None:
        opened = self.env.open(prompt, key)
        return None if opened is None else Written(adopt_episode(opened, str(self.env.name)))


class Written(Episode):
    """An episode with a list of its replies."""

    def __init__(self, episode: Episode, replies: tuple[Reply, ...] = ()) -> None:
        self.episode, self.replies = episode, replies

    def start(self) -> Observation | None:
        return self.episode.start()

    async def step(self, turn: Turn) -> Step:
        said: Any = self.episode.step(turn)
        step: Step = await said if inspect.isawaitable(said) else said
        if not isinstance(step, Step):
            return step  # whoever asked says what is wrong with it
        if step.messages is not None and not isinstance(step.messages, Observation):
            self.replies = (*self.replies, (step.role, list(step.messages)))
        return replace(step, info={**step.info, "replies": list(self.replies)})

    def fork(self) -> Written:
        return Written(self.episode.fork(), self.replies)

    def close(self) -> None:
        self.episode.close()
