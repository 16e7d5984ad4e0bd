"""What an environment replies to a turn: checked, timed, kept for a resumed run; a failure ends its episode and not the run."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Episode, Limits, RolloutRequest, Step
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import STOPS


class Talk:
    """The environment's side of one episode."""

    def __init__(self, ask: RolloutRequest, episode: Episode, name: str) -> None:
        self.ask, self.episode, self.name = ask, episode, name
        self.limits: Limits = ask.env.limits
        self.spent = 0.0  # seconds that its replies have taken
        self.known: list[
            tuple[Turn, Step]
        ] = []  # replies of before an interruption that the episode has not gone through

    async def reply(self, turn: Turn, count: int) -> Step:
        """The reply to a turn; `count` turns were made. One that is known from before an interruption is not asked for again."""
        named = self.turn_name(turn, count)
        kept = self.ask.replies.get(self.ask.step, named) if self.ask.replies is not None else None
        if kept is not None:
            self.known.append((turn, kept))
            return kept
        began = time.monotonic()
        left = max(self.limits.seconds - self.spent, 0.0)
        step = await self._within(left, asyncio.ensure_future(self._ask(turn, named)))
        if step is None:
            step = self._kept(named, Step(None, stop="timeout", info={"error": f"no reply within {left:.3g} s"}))
        elif isinstance(step, BaseException):
            step = self._kept(named, broken(step))
        self.spent += time.monotonic() - began
        return step

    async def _within(self, seconds: float, work: asyncio.Task[Step]) -> Step | BaseException | None:
        """What the work comes to; None where it takes longer, the error where it was cancelled by the environment's own doing.

        `asyncio.wait_for` of Python 3.11 forgets that it was cancelled where the work has just ended, and Ctrl-C would be lost."""
        try:
            await asyncio.wait([work], timeout=seconds)
            if not work.done():
                work.cancel()
                await asyncio.wait([work])  # it may put a reply on the disk until it has ended
                return None
        except asyncio.CancelledError:  # nobody waits for it any more
            work.cancel()
            raise
        return (
            work.result() if not work.cancelled() else asyncio.CancelledError("the environment cancelled its own work")
        )

    async def _ask(self, turn: Turn, named: bytes) -> Step:
        """The episode's own reply, after it has gone through the turns whose replies were known; kept as soon as it is there."""
        began = time.monotonic()
        try:
            for earlier, known in self.known:
                gone = self.episode.replay(earlier, known)
                if inspect.isawaitable(gone):
                    await gone
            self.known.clear()
            said = self.episode.step(turn)
            step = checked(await said if inspect.isawaitable(said) else said)
        except UserError:
            raise
        except (Exception, SystemExit) as error:  # the episode is masked and counted
            step = broken(error)
        late = self.spent + time.monotonic() - began > self.limits.seconds
        if late and step.messages is not None:  # a reply that could not be interrupted
            step = replace(step, messages=None, stop="timeout")
        return self._kept(named, step)

    def _kept(self, named: bytes, step: Step) -> Step:
        if self.ask.replies is not None:
            self.ask.replies.put(self.ask.step, named, step)
        return step

    def turn_name(self, turn: Turn, count: int) -> bytes:
        """Whose turn it is, and what it says: the reply to other words is another."""
        digest = hashlib.blake2b(f"{self.name}\0{count}\0".encode(), digest_size=16)
        digest.update(turn.actions.contiguous().numpy().tobytes())
        return digest.digest()


def broken(error: BaseException) -> Step:
    return Step(None, stop="broken", info={"error": f"{type(error).__name__}: {error}"})


def checked(step: Any) -> Step:
    """The step with plain numbers; one that says what cannot be is a failure of the environment."""
    if not isinstance(step, Step):
        raise TypeError(f"step() gave {type(step).__name__}, expected a Step")
    seen = step.messages
    if isinstance(seen, str | Mapping) or (not isinstance(seen, Observation | None) and not _messages(seen)):
        raise TypeError(
            f'a Step has messages [{{"role": ..., "content": ...}}], an Observation or None, got {seen!r:.80}'
        )
    if isinstance(seen, Observation) and (
        seen.tokens.dim() != 1 or (len(seen.tokens) and seen.tokens.is_floating_point())
    ):
        raise TypeError(f"the tokens of an Observation are a row of ids, got {seen.tokens!r:.80}")
    if not isinstance(step.role, str):
        raise TypeError(f"the role of a Step is a text, got {step.role!r:.40}")
    if seen is None and step.stop not in STOPS:
        raise UserError(f"an episode ended with {step.stop!r}; expected one of {', '.join(STOPS)}")
    if not isinstance(step.info, Mapping) or not isinstance(step.rewards, Mapping):
        raise TypeError(f"rewards and info of a Step are dicts, got {step.rewards!r:.40} and {step.info!r:.40}")
    rewards = {role: number(worth) for role, worth in step.rewards.items()}
    return replace(step, reward=None if step.reward is None else number(step.reward), rewards=rewards)


def _messages(seen: Any) -> bool:
    """Whether it is messages; a policy may read more than texts, so a content may be a list of parts."""
    return (
        isinstance(seen, Sequence)
        and len(seen) > 0
        and all(isinstance(m, dict) and isinstance(m.get("content"), str | list | tuple) for m in seen)
    )


def number(worth: Any) -> float:
    """A reward as a plain number; one that is not finite says nothing about the turn."""
    found = math.nan if isinstance(worth, str) else float(worth)
    if not math.isfinite(found):
        raise TypeError(f"a reward is a finite number, got {worth!r:.80}")
    return found
