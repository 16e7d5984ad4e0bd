"""The interfaces of the loop. Any object with these methods can be used: a language model, a table, a robot.

Curriculum.propose -> prompts -> rollout part (Policy.act, Environment.open -> Episode.step) -> Scorer.score -> Source.next
-> Policy.forward -> Learner -> Source.publish
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Message, Prompt, Rollout


class Policy(Protocol):
    """What acts and learns: a torch module that gives the log-probability of its actions. The same for text, pictures, control.

    A random draw depends only on the key and on the position of the action in the turn.
    """

    temperature: float  # of the distribution that is sampled and trained: one place, so they cannot differ

    @property
    def provides(self) -> frozenset[str]:
        """Streams that `forward` can give: logp_BT, entropy_BT, value_BT, score_B, or the policy's own."""

    def observe(self, prompt: Prompt) -> Observation:
        """A prompt as an observation of this policy."""

    def extend(self, turns: Sequence[Turn], messages: Sequence[Message]) -> Observation:
        """What messages add to the context of these turns; the policy, never the environment, turns messages into ids."""

    def act(
        self, pending: Sequence[Sequence[Turn]], keys: Sequence[Sequence[int]], how: Sampling, version: int = 0
    ) -> list[list[Turn]]:
        """For each context (turns, of which the last has not ended), one continuation of that last turn per key."""

    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0
    ) -> list[list[Rollout]]:
        """n answers of one turn to each prompt."""

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        """The streams asked for, of the actions of these rows."""

    def decode(self, actions: Tensor) -> str:
        """Actions as readable text."""

    def clone(self) -> Policy:
        """An independent copy."""

    def with_critic(self) -> Policy: ...
    def as_reward_model(self) -> Policy: ...
    def written(self, prompt: Prompt, text: str) -> Rollout: ...
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> Any: ...
    def train(self, mode: bool = True) -> Self: ...
    def eval(self) -> Self: ...
    def requires_grad_(self, on: bool = True) -> Self: ...

    @property
    def training(self) -> bool: ...


@dataclass(frozen=True)
class Step:
    """What an environment returns for a turn."""

    messages: Sequence[Message] | Observation | None = None  # what is seen next; None ends the episode
    reward: float | None = None  # earned by the turn
    rewards: Mapping[str, float] = field(default_factory=dict)  # earned by roles, on the last turn of each
    stop: str = "answered"  # why it ended, where it did: a key of core.types.STOPS
    role: str = "policy"  # who moves next
    info: dict[str, Any] = field(default_factory=dict)  # kept in `Rollout.info`: `states`, tool calls, times


class Episode:
    """One episode of one prompt, used once. Its draws belong to its key, so (prompt, actions) replays any state."""

    def start(self) -> Observation | None:
        """What is seen first; None: the prompt, as the policy reads it."""
        return None

    def step(self, turn: Turn) -> Step | Awaitable[Step]:
        """What follows a turn; it may be a coroutine: a tool, a server."""
        raise UserError(f"{type(self).__name__} does not say what follows a turn; give it step(turn) -> Step")

    def replay(self, turn: Turn, step: Step) -> Awaitable[None] | None:
        """Get to the state after a turn whose reply is known: a resumed run has the replies of turns that were finished. Unless it
        says otherwise, the step is made again, and must give the same; one that acts on the world notes the turn and no more."""
        return repeated(self, turn, step)

    def fork(self) -> Episode:
        """An independent episode in the same state: a copy where it can be copied; else replay the actions."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Release its resources."""


async def repeated(episode: Any, turn: Turn, step: Step) -> None:
    """Make a step again; one that comes out otherwise is an error, since what follows would not fit to what was seen."""
    said = episode.step(turn)
    again = await said if inspect.isawaitable(said) else said
    for name in ("messages", "reward", "stop", "role"):
        was, now = getattr(step, name), getattr(again, name)
        if not isinstance(was, Observation) and was != now:
            raise RuntimeError(
                f"{type(episode).__name__}.step, made again after a restart, gave {name} {now!r:.80}, and {was!r:.80} before; "
                "give it replay(turn, step), or let its draws depend on the key alone"
            )


@dataclass(frozen=True)
class Limits:
    """How long episodes may be, and whether those that are ready wait for others."""

    turns: int = 64  # of all roles
    seconds: float = 600.0  # that the environment may take for an episode, all its replies together
    overlap: float = 0.5  # the share of episodes that may wait for replies before sampling waits for the first of them
    free: bool = False  # ready ones go on at once: faster, and not reproducible


class Environment:
    """Where prompts come from, what happens after a turn, and how an answer is graded. Subclass it, or write a class with the same methods.

    A task of single answers has `prompt` and `grade`; one with turns has `prompt` and `open`.
    """

    @property
    def graded(self) -> bool:
        """Whether `grade` is defined; false where an episode, or a separate reward, scores answers."""
        return type(self).grade is not Environment.grade

    @property
    def opens(self) -> bool:
        """Whether the environment has turns: `open` is defined."""
        return type(self).open is not Environment.open

    name: Any  # what the task is called; a string
    limits: Limits = Limits()  # of its episodes

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Prompt number `index` of a split: a function of the two alone. With a `size`, indices are below it."""
        raise UserError(f"{type(self).__name__} has no prompts; give it prompt(index, split) -> Prompt")

    def open(self, prompt: Prompt, key: int) -> Episode | None:
        """An episode of this prompt; None for a task of single answers."""
        return None

    def first_role(self, prompt: Prompt) -> str:
        """Who moves first."""
        return "policy"

    def grade(self, prompt: Prompt, text: str) -> float:
        """The grade of an answer, in [0, 1]."""
        raise UserError(f"{type(self).__name__} cannot grade answers; name a reward with --reward")

    def validate(self, n: int) -> list[str]:
        """Test the grader: a sentence for each problem found in n prompts."""
        return []


@runtime_checkable
class Scorer(Protocol):
    """Sets the rewards of rollouts, in training and in evaluation alike. A failure masks the rollout and is counted."""

    def score(self, groups: list[Group]) -> Any: ...


class Replies(Protocol):
    """What environments replied to turns of the steps since the last checkpoint, so that a resumed run asks none of them again."""

    def get(self, step: int, name: bytes) -> Step | None:
        """The reply to the turn of this name, where there is one."""

    def put(self, step: int, name: bytes, reply: Step) -> None:
        """Keep a reply, whatever happens to this process."""

    def flush(self) -> None:
        """Whatever happens to the machine."""


Finished = Callable[[Prompt, int, Callable[[], str]], None]  # prompt, index of the answer, its text when asked for


@dataclass(frozen=True)
class RolloutRequest:
    """The argument of a rollout part: answer these prompts in this environment, as a function of (seed, step)."""

    policies: Mapping[str, Policy]  # by role
    prompts: Sequence[Prompt]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    step: int = 0
    env: Environment = field(default_factory=Environment)
    version: int | None = None  # of the weights; the step unless they are older
    finished: Finished | None = None  # told of each answer as it ends, while others are still sampled
    replies: Replies | None = None  # of environments, as far as this step had got before it was interrupted

    @property
    def policy(self) -> Policy:
        """The role that answers where there is only one."""
        return self.policies["policy"] if "policy" in self.policies else next(iter(self.policies.values()))

    def but(self, **changes: Any) -> RolloutRequest:
        return replace(self, **changes)


class Curriculum(Protocol):
    """Which prompts come next."""

    def start(self, env: Environment, seed: int) -> None:
        """Called once, before the first step."""

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        """The n prompts of a step; where a method refills what it drops, `step` counts batches of prompts."""

    def observe(self, groups: list[Group]) -> None:
        """Called with the scored groups of the prompts it proposed."""


class Source(Protocol):
    """Where the loop's rollouts come from: sampled in this process, another process, a log, a replay memory."""

    def next(self, step: int) -> tuple[list[Group], Any]:
        """The scored groups of a step, and the report of the scoring. Asked again with the same step: of other prompts, for
        methods that refill what their selection drops; the reports of a step are added."""

    def publish(self, version: int) -> None:
        """The policy has been updated: later rollouts may use it, and curricula see the results."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart (tensors allowed: a replay memory has many)."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
