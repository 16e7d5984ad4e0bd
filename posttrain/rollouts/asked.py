"""A frozen model that an environment asks in the middle of episodes: one that plays a search engine, a patient, a user."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt


@dataclass
class Asked:
    """All that is asked at one moment is answered in one call of the model. What it says depends on the prompt and its id alone."""

    policy: Policy
    how: Sampling
    waiting: list[tuple[Prompt, asyncio.Future[str]]] = field(default_factory=list)

    async def ask(self, prompt: Prompt) -> str:
        """The model's answer."""
        loop = asyncio.get_running_loop()
        if not self.waiting:
            loop.call_soon(self.answer)
        made: asyncio.Future[str] = loop.create_future()
        self.waiting.append((prompt, made))
        return await made

    def answer(self) -> None:
        waiting, self.waiting = self.waiting, []
        try:
            answers = self.policy.sample([prompt for prompt, _ in waiting], 1, self.how)
        except Exception as error:
            for _, made in waiting:
                if not made.done():
                    made.set_exception(error)
            return
        for (_, made), (answer,) in zip(waiting, answers, strict=True):
            if not made.done():  # the episode may have run out of time
                made.set_result(answer.text)
