"""The shapes of the loop's moving parts. Whatever has these methods takes part: a language model, a table, a robot.

Curriculum.propose -> prompts -> rollout part (Policy.act, Environment.open -> Episode.step) -> Scorer.score -> Source.next
-> Policy.forward -> Learner -> Source.publish
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

from torch import Tensor, nn

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Message, Prompt, Rollout

if TYPE_CHECKING:
    import torch


class Policy(Protocol):
    """What acts and learns: a torch module that says how likely its actions were. Language, pictures, control: the same.

    The random identity of an action is its key and its place in the turn: nothing else may change what is drawn.
    """

    temperature: float  # of the distribution that is sampled and trained: one place, so they cannot differ

    @property
    def provides(self) -> frozenset[str]:
        """Streams that `forward` can give: logp_BT, entropy_BT, value_BT, score_B, or the policy's own."""

    def observe(self, prompt: Prompt) -> Observation:
        """A prompt as the policy perceives it."""

    def extend(self, turns: Sequence[Turn], messages: Sequence[Message]) -> Observation:
        """What messages add to the context of these turns; the policy, never the environment, turns messages into ids."""

    def act(
        self, pending: Sequence[Sequence[Turn]], keys: Sequence[Sequence[int]], how: Sampling, version: int = 0
    ) -> list[list[Turn]]:
        """For each context (turns, of which the last has not ended), one way to go on per key: that last turn, longer."""

    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0
    ) -> list[list[Rollout]]:
        """n answers of one turn to each prompt."""

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        """The streams asked for, of the actions of these rows."""

    def decode(self, actions: Tensor) -> str:
        """Actions for people."""

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
    """What an environment answers to a turn."""

    messages: Sequence[Message] | Observation | None = None  # what is seen next; None ends the episode
    reward: float | None = None  # earned by the turn
    rewards: Mapping[str, float] = field(default_factory=dict)  # earned by roles, on the last turn of each
    stop: str = "answered"  # why it ended, where it did: a key of core.types.STOPS
    role: str = "policy"  # who moves next
    info: dict[str, Any] = field(
        default_factory=dict
    )  # told to the rollout: `states`, what was called, how long it took


class Episode:
    """One episode of one prompt, used once. Its draws belong to its key, so (prompt, actions) replays any state."""

    def start(self) -> Observation | None:
        """What is seen first; None: the prompt, as the policy reads it."""
        return None

    def step(self, turn: Turn) -> Step | Awaitable[Step]:
        """What follows a turn; it may be a coroutine: a tool, a server."""
        raise UserError(f"{type(self).__name__} does not say what follows a turn; give it step(turn) -> Step")

    def fork(self) -> Episode:
        """An independent episode in the same state: a copy where it can be copied; else replay the actions."""
        return copy.deepcopy(self)

    def close(self) -> None:
        """Let go of whatever it holds."""


class Environment:
    """Where prompts come from, what happens after a turn, and what an answer was worth. Subclass it, or look like it.

    A task of single answers has `prompt` and `grade`; one with turns has `prompt` and `open`.
    """

    @property
    def graded(self) -> bool:
        """Whether `grade` can say what an answer is worth: false where an episode, or a reward, does."""
        return type(self).grade is not Environment.grade

    @property
    def opens(self) -> bool:
        """Whether what follows an answer is up to the environment: it has turns."""
        return type(self).open is not Environment.open

    name: Any  # what the task is called; a string

    def prompt(self, index: int, split: str = "train") -> Prompt:
        """Prompt number `index` of a split: a function of the two alone. With a `size`, indices are below it."""
        raise UserError(f"{type(self).__name__} has no prompts; give it prompt(index, split) -> Prompt")

    def open(self, prompt: Prompt, key: int) -> Episode | None:
        """An episode of this prompt; None where an answer is all there is."""
        return None

    def first_role(self, prompt: Prompt) -> str:
        """Who moves first."""
        return "policy"

    def grade(self, prompt: Prompt, text: str) -> float:
        """What an answer is worth, in [0, 1]."""
        raise UserError(f"{type(self).__name__} cannot grade answers; name a reward with --reward")

    def validate(self, n: int) -> list[str]:
        """The grader graded: a sentence for each problem found in n prompts."""
        return []


@runtime_checkable
class Scorer(Protocol):
    """Says what rollouts are worth: the same in training and in evaluation. A failure masks the rollout and is counted."""

    def score(self, groups: list[Group]) -> Any: ...


@dataclass(frozen=True)
class RolloutRequest:
    """What a rollout part is asked: answers to these prompts, in this environment, as a function of (seed, step)."""

    policies: Mapping[str, Policy]  # by role
    prompts: Sequence[Prompt]
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    step: int = 0
    env: Environment = field(default_factory=Environment)
    version: int | None = None  # of the weights; the step unless they are older

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
        """The n prompts of a step."""

    def observe(self, groups: list[Group]) -> None:
        """What came of the prompts it proposed."""


class Source(Protocol):
    """Where the loop's rollouts come from: here and now, another process, a log, a replay memory."""

    def next(self, step: int) -> tuple[list[Group], Any]:
        """The scored groups of a step, and how the scoring went."""

    def publish(self, version: int) -> None:
        """The policy has been updated: later rollouts may use it, curricula may look at what was learned."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart (tensors allowed: a replay memory has many)."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Parallel(Protocol):
    """How one learner's work is spread over processes; `Local` is one process."""

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module, sharded where there are several processes."""

    def sum(self, x: float) -> float:
        """The sum of a number over all processes: losses divide by counts of the whole minibatch."""

    def same_count(self, n: int) -> int:
        """The largest count of pieces that any process has: all run as many, so that none waits for ever."""

    def full_state(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The whole state, gathered."""
