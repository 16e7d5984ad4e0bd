"""Turns of many conversations from the engine: each joins the batch when it is asked for, and the engine keeps what it read of it until
its next one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn, join
from posttrain.inference.engine import Engine
from posttrain.inference.jobs import Job
from posttrain.inference.pages import Pages
from posttrain.inference.sessions import Session
from posttrain.inference.stop_strings import finder
from posttrain.policies.continued import grown
from posttrain.policies.window import check_ids, room_for, vocabulary

_AHEAD = 4  # on a GPU the room for a conversation is so many times that of its first turn; more room later means reading again


@dataclass
class Asked:
    """A turn that is being sampled."""

    who: Hashable
    begun: Turn
    job: Job


class EngineTurns:
    """Of one policy with its weights as they are, for up to `count` conversations at a time; `close` when all is said."""

    def __init__(self, policy: Any, engine: Engine, how: Sampling, version: int, count: int) -> None:
        self.policy, self.engine, self.how, self.version, self.count = policy, engine, how, version, count
        self.sessions: dict[Hashable, Session] = {}
        self.asked: dict[int, Asked] = {}  # by job
        self.later: list[Job] = []  # not given to the engine yet
        self.groups: dict[bytes, int] = {}  # contexts that conversations began with
        self.room = 0  # positions of a slot
        self.was = policy.training
        policy.eval()
        engine.lent = True

    @property
    def busy(self) -> bool:
        return bool(self.asked)

    def ask(self, who: Hashable, turns: Sequence[Turn], key: int) -> None:
        """Sample the last of these turns, which has not ended; the others are the conversation so far."""
        row = join(turns)
        check_ids([t.observation for t in turns], vocabulary(self.policy.model))
        room = room_for([row], self.policy.window)[0] if self.policy.window else self.how.max_tokens
        how = self.how if room >= self.how.max_tokens else replace(self.how, max_tokens=room)
        context = torch.cat([row.observation.tokens, row.actions]) if len(row) else row.observation.tokens
        group = -1 if len(row) else self.groups.setdefault(row.observation.key, len(self.groups))
        session = self.sessions.setdefault(who, Session())
        ends = finder(self.policy.decode, how.stops) if how.stops else None
        job = Job(context, key, how, ends, group, session=session)
        self.asked[id(job)] = Asked(who, turns[-1], job)
        self.later.append(job)

    def step(self) -> list[tuple[Hashable, Turn]]:
        """Sample for a while; what has ended comes with whose turn it is, in the order of asking."""
        self._admit()
        done = self.engine.step()
        ended = [self.asked.pop(id(job)) for job in sorted(done, key=lambda job: job.order)]
        whole = [torch.cat([a.begun.actions, a.job.tokens]) if len(a.begun) else a.job.tokens for a in ended]
        texts = self.policy.decode_all(whole) if whole else []
        return [
            (a.who, grown(a.begun, a.job.sample(), actions, text, self.version))
            for a, actions, text in zip(ended, whole, texts, strict=True)
        ]

    def _admit(self) -> None:
        """Hand turns to the engine. One that is too long for its slots waits until all others have ended, and slots are made longer."""
        fits = [job for job in self.later if length(job) <= self.room]
        if not self.engine.busy and self.later and not fits:
            self._lengthen(max(map(length, self.later)))
            fits = self.later
        self.engine.waiting.extend(fits)
        taken = set(map(id, fits))
        self.later = [job for job in self.later if id(job) not in taken]

    def _lengthen(self, need: int) -> None:
        engine, pool = self.engine, self._pool()
        if engine.cuda:
            need = max(need, min(self.policy.window or need, _AHEAD * need))
        engine.prepare(self.count, need, self.how.max_tokens, self.policy.stop_ids, kept=self.count)
        if pool is not None and self._pool() is not pool:  # their pages are gone
            for session in self.sessions.values():
                session.drop(pool)
        self.room = need  # not what the slots have by now: who waits for whom must not depend on earlier calls

    def _pool(self) -> Pages | None:
        """The pages, where sessions hold some."""
        slots = self.engine.slots
        return None if slots is None or slots.one_page_each else slots.pages

    def branch(self, who: Hashable, other: Hashable) -> None:
        """Let another conversation go on from where this one stands."""
        if who in self.sessions:
            self.sessions[other] = self.sessions[who].branch(self._pool())

    def end(self, who: Hashable) -> None:
        """Forget a conversation."""
        session = self.sessions.pop(who, None)
        if session is not None:
            session.drop(self._pool())

    def close(self) -> None:
        for who in list(self.sessions):
            self.end(who)
        if self.engine.slots is not None:
            self.engine.clear()
        self.engine.lent = False
        self.policy.train(self.was)


def length(job: Job) -> int:
    """Positions that a turn may come to."""
    return len(job.context) + job.how.max_tokens
