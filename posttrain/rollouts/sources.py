"""Where the loop's rollouts come from: a source proposes prompts, samples and scores answers, and updates its curriculum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from posttrain.core.protocols import Curriculum, Environment, Policy, Replies, RolloutRequest, Scorer
from posttrain.core.ranks import ranks, scored
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.stream import Stream
from posttrain.prompts.uniform import copy_of, uniform

_UNIFORM: Any = uniform  # the part


class LocalSource:
    """Samples in this process from the policies being trained, so the version of every rollout is the current step."""

    def __init__(
        self, policies: Mapping[str, Policy], env: Environment, rollout: Part, scorer: Scorer, curriculum: Curriculum,
        how: tuple[Sampling, int, int],
    ) -> None:  # fmt: skip
        self.policies, self.env, self.rollout, self.scorer, self.curriculum = policies, env, rollout, scorer, curriculum
        self.sampling, self.prompts, self.seed = how  # how answers are drawn, prompts per step, the seed of all draws
        self.curriculum.start(env, self.seed)
        self._last: list[Group] = []  # of the step, in all its rounds
        self._step = -1  # that they belong to
        self._of: dict[str, Prompt] = {}  # what those prompts are that were asked under another identity
        self._refills = 0  # rounds so far that were not the first of their step
        self.replies: Replies | None = None  # of environments with turns, for a run that is resumed
        self._coming: Coming | None = None  # the next step's rows, where they are written

    def next(self, step: int) -> tuple[list[Group], Any]:
        """prompts -> rollouts -> rewards; a failed reward is masked and counted, never taken as 0.

        A step that is asked again gets the next prompts. A prompt that came up already in this step, because of that or because more
        are asked than there are, is asked under another identity, so that its answers are not copies; its first keeps its own. (Where a step
        reaches from one pass over the rows into the next, a prompt may come twice under one identity.)
        """
        earlier = self._earlier(step)
        alone = ranks().world == 1
        begin = getattr(self.scorer, "begin", None) if alone else None  # grades an answer while others are sampled
        prompts = self.propose(step)
        asked = RolloutRequest(
            self.policies, prompts, self.sampling, self.seed, step, self.env, finished=begin, replies=self.replies
        )
        groups, report = scored(self.scorer, self.answered(asked))
        self._last, self._step = earlier + groups, step
        self._coming = self._after(asked)
        return groups, report

    def meanwhile(self) -> None:
        """Read the next step's rows, while the device is busy with this one's."""
        if self._coming is not None:
            self._coming.work()

    def answered(self, asked: RolloutRequest) -> list[Group]:
        """The groups of a request; texts that are there already are read at once."""
        if not self._written or not hasattr(asked.policy, "read_ahead"):
            made: list[Group] = self.rollout(asked)
            return made
        came, self._coming = self._coming, None
        asked.policy.read_ahead(asked.prompts, came.read if came and came.prompts is asked.prompts else None)
        made = self.rollout(asked)
        return made

    def _after(self, asked: RolloutRequest) -> Coming | None:
        """The next step's rows, where what comes is a function of the step alone."""
        plain = type(self.curriculum) is _UNIFORM.fn and not isinstance(self.env, Stream)
        if not (self._written and plain and hasattr(asked.policy, "reading")):
            return None
        at = asked.step + 1 + self._refills
        return Coming(at, lambda: self.curriculum.propose(self.prompts, at, asked.policy), asked.policy)

    @property
    def _written(self) -> str:
        """What kind of answers are there already; empty where they are sampled."""
        return str(getattr(getattr(self.rollout, "card", None), "data", ""))

    def propose(self, step: int) -> list[Prompt]:
        """The next prompts of a step."""
        earlier = self._earlier(step)
        self._refills += bool(earlier)
        at = step + self._refills
        came = self._coming.prompts if self._coming and self._coming.at == at and not earlier else None
        if came is not None:
            return came
        prompts = self.curriculum.propose(self.prompts, at, next(iter(self.policies.values())))
        if not earlier and not self.few:
            return prompts
        named = apart(prompts, {g.prompt.id for g in earlier})
        self._of |= {p.id: was for was, p in zip(prompts, named, strict=True) if p is not was}
        return named

    def _earlier(self, step: int) -> list[Group]:
        """What the present step was answered already."""
        return self._last if step == self._step else []

    @property
    def few(self) -> bool:
        """Whether a step asks for more prompts than there are to sample answers to: of the task, or of those that the curriculum takes."""
        taken = getattr(self.curriculum, "inner", self.curriculum)
        return not self._written and any(
            0 < n < self.prompts for n in (size_of(self.env, "train"), getattr(taken, "pool", 0))
        )

    def publish(self, version: int) -> None:
        """The policies were updated: the curriculum sees the groups of the step."""
        of, seen = self._of, {g.prompt.id for g in self._last}
        self.curriculum.observe([replace(g, prompt=of[g.prompt.id]) if g.prompt.id in of else g for g in self._last])
        self._step, self._of = -1, {id: was for id, was in of.items() if id not in seen}  # others are of steps to come

    def state_dict(self) -> dict[str, Any]:
        refills = {"refills": self._refills} if self._refills else {}
        return refills | (
            {"curriculum": self.curriculum.state_dict()} if hasattr(self.curriculum, "state_dict") else {}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._refills = int(state.get("refills", 0))
        if "curriculum" in state and hasattr(self.curriculum, "load_state_dict"):
            self.curriculum.load_state_dict(state["curriculum"])


class Coming:
    """Rows of the step after this one: chosen and tokenised when there is time, which has nothing to do with the weights. (Not in another
    thread: it would take the interpreter from the one that is to keep the device busy.)"""

    def __init__(self, at: int, choose: Callable[[], list[Prompt]], policy: Any) -> None:
        self.at, self.choose, self.policy = at, choose, policy
        self.tried = False
        self.prompts: list[Prompt] | None = None
        self.read: Any = None  # what the policy has read of them

    def work(self) -> None:
        if self.tried:
            return
        self.tried = True
        with suppress(Exception):  # it is met again, and told, where the rows are asked for
            prompts = self.choose()
            self.read = self.policy.reading(prompts)
            self.prompts = prompts


def apart(prompts: Sequence[Prompt], taken: set[str]) -> list[Prompt]:
    """The prompts, those whose identity is taken (a small set came round) with one of their own, so that their answers differ."""
    out = []
    for p in prompts:
        found = next(x for k in count() if (x := copy_of(p, k)).id not in taken)
        taken = taken | {found.id}
        out.append(found)
    return out
