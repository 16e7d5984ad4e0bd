"""What flows through the loop: Prompt -> Rollout -> Group -> Batch. Turns are in `core/turn.py`, the batch in `core/batch.py`.

Shape letters, used as name suffixes everywhere:
    P  prompts or pairs        G  rollouts of one prompt      B  rows of a batch      L, K  ranked lists, their places
    T  time (tokens, steps)    V  vocabulary                  D  width of the model   S     states (T + 1 of them)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from torch import Tensor

from posttrain.core.prompt import Message as Message
from posttrain.core.prompt import Prompt as Prompt
from posttrain.core.turn import Observation, Turn, join


class End(Enum):
    """How an episode ended; this decides whether it is masked."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"  # cut off at a limit on tokens or turns: graded as it stands
    INVALID = "invalid"  # the policy's own fault (a malformed call): graded, usually badly
    ENV_ERROR = "env_error"  # the environment broke: masked and counted
    REWARD_FAILED = "reward_failed"  # it could not be scored: masked and counted


# why an episode stopped, for people -> how it ended
STOPS = {
    "stop": End.COMPLETED,
    "answered": End.COMPLETED,
    "tool_end": End.COMPLETED,
    "length": End.TRUNCATED,
    "max_turns": End.TRUNCATED,
    "max_context": End.TRUNCATED,
    "max_calls": End.TRUNCATED,
    "timeout": End.TRUNCATED,
    "structural": End.INVALID,
    "content": End.INVALID,
    "broken": End.ENV_ERROR,
}
MASKED = (End.ENV_ERROR, End.REWARD_FAILED)


def ended(stopped: bool) -> tuple[End, str]:
    """How an answer of one turn ended: by itself, or at the length limit."""
    return (End.COMPLETED, "stop") if stopped else (End.TRUNCATED, "length")


class Origin(Enum):
    """Where a rollout comes from: the policy's own sampler, whose log-probabilities can be compared, or elsewhere."""

    SAMPLED = "sampled"
    WRITTEN = "written"  # by a person or another model: it has no sampler's log-probabilities
    LOGGED = "logged"  # by some policy earlier, perhaps with its log-probabilities
    REPLAYED = "replayed"  # by this policy at an earlier step


@dataclass(frozen=True)
class Branch:
    """Where a rollout branched off another one of its group."""

    parent: int  # the `index` of the rollout that it branched from
    at: int  # how many of the parent's actions it shares


@dataclass
class Rollout:
    """One episode of one role: its turns, how it ended, its reward.

    reward is None until it is scored, and NaN when scoring failed: such a rollout is masked, and its reward does not count as 0.
    `actions`, `mask_T` and the like are those of its last context, which is all of it unless the context was rewritten.
    """

    prompt: Prompt
    turns: list[Turn]
    end: End = End.COMPLETED
    stop: str = "stop"  # why it ended, for people: a key of STOPS
    origin: Origin = Origin.SAMPLED
    index: int = 0  # which sample of its prompt: part of its random identity
    role: str = "policy"
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)  # by component
    branch: Branch | None = None
    info: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def single(
        prompt: Prompt, context: Tensor | Observation, actions: Tensor, logp_T: Tensor, mask_T: Tensor | None = None,
        text: str = "", reward: float | None = None, **rest: Any,
    ) -> Rollout:  # fmt: skip
        """An answer of one turn. rest: `version` of the weights, `stopped`, and fields of the rollout (index, origin, ...)."""
        version, stopped = rest.pop("version", 0), rest.pop("stopped", True)
        seen = context if isinstance(context, Observation) else Observation(context)
        turn = Turn.of(seen, actions, logp_T, text, version)
        turn.mask_T = turn.mask_T if mask_T is None else mask_T
        turn.stopped = stopped
        return Rollout(prompt, [turn], *ended(stopped), reward=reward, **rest)

    @property
    def rows(self) -> list[Turn]:
        """One row per context, in order."""
        return [join(context) for context in self.contexts]

    @property
    def contexts(self) -> list[list[Turn]]:
        """The turns by context: those that continue one another stand together."""
        if len(self.turns) == 1:
            return [self.turns]
        starts = [i for i, t in enumerate(self.turns) if i == 0 or not t.continues]
        return [self.turns[a:b] for a, b in zip(starts, [*starts[1:], len(self.turns)], strict=True)]

    @property
    def row(self) -> Turn:
        """The last context: what rewards, selections and advantages see."""
        return self.turns[0] if len(self.turns) == 1 else self.rows[-1]

    @property
    def context(self) -> Tensor:
        return self.row.observation.tokens

    @property
    def actions(self) -> Tensor:
        return self.row.actions

    @property
    def logp_T(self) -> Tensor:
        return self.row.logp_T

    @property
    def mask_T(self) -> Tensor:
        return self.row.mask_T

    @property
    def text(self) -> str:
        """The text of the last turn."""
        return self.turns[-1].text

    @property
    def version(self) -> int:
        """The newest weights that any of its actions was sampled from."""
        return self.versions[1]

    @property
    def versions(self) -> tuple[int, int]:
        """The oldest and the newest weights that its actions were sampled from."""
        every = [v for t in self.turns if len(t) for v in _span(t.version_T)] or [0]
        return min(every), max(every)

    def __len__(self) -> int:
        return len(self.row)

    def stream(self, name: str) -> Tensor | None:
        """A stream of the last context's actions (`reward`, `adv`, ...), or None where it is not known."""
        return self.row.streams_T.get(name)

    def set_stream(self, name: str, x_T: Tensor | None) -> None:
        """Attach a stream to the actions of the last context; None takes it away."""
        last = max((i for i, t in enumerate(self.turns) if not t.continues), default=0)
        at = 0
        for k, t in enumerate(self.turns[last:]):
            at += len(t.observation.tokens) if k else 0
            if x_T is None:
                t.streams_T.pop(name, None)
            else:
                t.streams_T[name] = x_T[at : at + len(t)]
            at += len(t)

    def but_turn(self, **changes: Any) -> Rollout:
        """The same rollout with another last turn; the streams of the old one are dropped."""
        return replace(self, turns=[*self.turns[:-1], replace(self.turns[-1], **{"streams_T": {}} | changes)])

    @property
    def truncated(self) -> bool:
        """It reached a limit on tokens, turns or time."""
        return self.end is End.TRUNCATED

    @property
    def failed(self) -> bool:
        """Scoring or the environment failed (an error, a time-out), so it is masked."""
        return (self.reward is not None and self.reward != self.reward) or self.end in MASKED

    @property
    def total(self) -> float:
        """The total reward: the outcome and the rewards of its turns."""
        return (self.reward or 0.0) + sum(t.reward or 0.0 for t in self.turns)


def _span(version_T: Tensor) -> tuple[int, int]:
    """The least and the greatest; a version that was expanded over a turn is read once."""
    if version_T.stride(0) == 0:
        return (one := int(version_T[0])), one
    return int(version_T.min()), int(version_T.max())


@dataclass
class Group:
    """Siblings: G answers to one prompt, a preference pair, a ranking, the leaves of a tree."""

    prompt: Prompt
    rollouts: list[Rollout]
    pairs: tuple[
        tuple[int, int], ...
    ] = ()  # (better, worse) as places in rollouts; made by data or by a part that ranks
    ranking: tuple[int, ...] = ()  # places in rollouts, best first, where all were ranked
    strengths: tuple[float, ...] = ()  # for each pair: the probability that its first is preferred; none: 1 for all

    def only(self, places: Sequence[int]) -> Group:
        """The rollouts at these places, in this order; pairs with a missing rollout are dropped, and rankings keep the rest."""
        new = {old: i for i, old in enumerate(places)}
        inside = [i for i, (a, b) in enumerate(self.pairs) if a in new and b in new]
        pairs = tuple((new[self.pairs[i][0]], new[self.pairs[i][1]]) for i in inside)
        strengths = tuple(self.strengths[i] for i in inside) if self.strengths else ()
        ranking = tuple(new[i] for i in self.ranking if i in new)
        rollouts = [self.rollouts[i] for i in places]
        ranking = ranking if len(ranking) > 1 else ()
        return replace(self, rollouts=rollouts, pairs=pairs, ranking=ranking, strengths=strengths)

    @property
    def scored(self) -> list[Rollout]:
        """The rollouts whose reward is a number."""
        return [r for r in self.rollouts if r.reward is not None and not r.failed]
