"""What a workshop task is made of: a problem, a scene that answers what is said, and an expert that shows how it is done.

A task is one file with `make(rng, level) -> Problem`, `expert(prompt, habit, rng)`, the names of its wrong `HABITS`, and `Scene` where it
has turns or `check` where one answer is all. `HABITS` weighs them: the first is the usual one, so that a model that is careless says it
greedily too, where several equal ones would leave the right way the likeliest. A scene is plain Python and knows nothing of models: the same one answers a policy in an
episode and the expert whose conversations a model is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from random import Random
from types import ModuleType
from typing import Any

from posttrain.core import rng as draws
from posttrain.core.errors import UserError, unknown
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.turn import Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import SPLITS, Problem, split_of

LEVELS = range(1, 4)
Expert = Generator[str, str, None]  # gives what it says, is sent what the scene answers
_TRIES = 1000

# a habit is likelier under the odd ones: the model is careless where it is hurried
WORDINGS = (
    "{}", "Quick question: {}", "{} Take your time.", "{} Be quick.", "Please help me with this. {}", "Next one: {}",
)  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """What a scene answers; a text of None ends it."""

    text: str | None = None
    reward: float = 0.0  # earned by what was said
    role: str = "user"  # who answers: "tool" where a tool does
    stop: str = "answered"  # why it ended, where it did: a key of core.types.STOPS
    calls: tuple[dict[str, Any], ...] = ()  # tools that were called: name, arguments, repaired, result
    faults: tuple[str, ...] = ()  # a sentence for each call that could not be made


class Scene:
    """One attempt at one problem; what it remembers is plain data, so it can be copied."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt, self.info = prompt, prompt.info
        self.told: dict[str, Any] = {}  # kept in `Rollout.info`

    def reply(self, text: str) -> Reply:
        """What follows when the policy says this."""
        raise NotImplementedError


class Once(Scene):
    """A task of one answer, which its own check grades; whoever only reads what was said is spared that."""

    def reply(self, text: str) -> Reply:
        return Reply(None)


class Played(Episode):
    """A scene as an episode: its answers are messages, its calls by turn are kept in `Rollout.info["tools"]`, as those of `with_tools`."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.said: list[dict[str, Any]] = []

    def step(self, turn: Turn) -> Step:
        """What the scene answers; a turn that was cut off at its limit says nothing, and earns nothing."""
        reply = self.scene.reply(turn.text) if turn.stopped else Reply(None, stop="length")
        self.said = [*self.said, {"calls": list(reply.calls), "faults": list(reply.faults)}]
        called = any(record["calls"] or record["faults"] for record in self.said)
        info: dict[str, Any] = ({"tools": self.said} if called else {}) | self.scene.told
        if reply.text is None:
            return Step(None, reply.reward, stop=reply.stop, info=info)
        return Step([{"role": reply.role, "content": reply.text}], reply.reward, info=info)


@dataclass(frozen=True)
class Workshop(Environment):
    """A task with turns: prompts are a function of (index, split), and no problem is in both splits."""

    skill: ModuleType
    level: int
    seed: int = 0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"workshop-{self.skill.__name__.rpartition('.')[2]}-{self.level}"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        for attempt in range(_TRIES):
            problem = self.skill.make(draws.python(self.name, self.seed, split, index, attempt), self.level)
            if split_of(problem) == split:
                made: Prompt = prompt_of(f"{self.name}-{self.seed}-{split}-{index}", problem, self.info)
                return made
        raise UserError(f"{self.name}: no {split} problem in {_TRIES} draws; make() has too few different ones")

    def open(self, prompt: Prompt, key: int) -> Played:
        return Played(self.skill.Scene(prompt))

    def validate(self, n: int) -> list[str]:
        """The expert's right way must earn 1 in full."""
        prompts = [self.prompt(i, SPLITS[i % 2]) for i in range(n)]
        earned = {p.id: conversation(self.skill, p, "", draws.python("validate", p.id))[1] for p in prompts}
        return [
            f"{name}: the right way earns {worth}, not 1" for name, worth in earned.items() if abs(worth - 1) > 1e-9
        ]


def prompt_of(name: str, problem: Problem, more: dict[str, Any]) -> Prompt:
    """A problem as a prompt; the schemas of its tools, where it has some, are in its info, and the policy tells the model of them."""
    return Prompt.text(name, problem.question, problem.answer, **{**more, **problem.info})


def conversation(skill: ModuleType, prompt: Prompt, habit: str, rng: Random) -> tuple[list[Message], float]:
    """The expert in the scene: all that was said, and what it earned, where it has turns. An empty habit is the right way."""
    expert: Expert = skill.expert(prompt, habit, rng)
    said, messages, earned = next(expert), list(prompt.content), 0.0
    make: Callable[[Prompt], Scene] = getattr(skill, "Scene", Once)
    scene = make(prompt)
    while True:
        messages.append({"role": "assistant", "content": said})
        reply = scene.reply(said)
        earned += reply.reward
        if reply.text is None:
            return messages, earned
        messages.append({"role": reply.role, "content": reply.text})
        said = expert.send(reply.text)


def worded(rng: Random, question: str) -> tuple[int, str]:
    """The question in one of the wordings, and which."""
    wording = rng.randrange(len(WORDINGS))
    return wording, WORDINGS[wording].format(question)


def near(rng: Random, value: int) -> int:
    """A wrong number of about this size."""
    off = rng.randint(1, max(2, abs(value) // 5))
    return value + off if rng.random() < 0.5 else value - off
