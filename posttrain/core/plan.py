"""A plan: phases in sequence, in cycles, alternating, each applying one method to one role, until a gate says stop.

SFT, then a reward model, then RL is a plan; so are GRPO-and-verify cycles, generator against verifier, safety gates.
What a phase leaves behind (weights of a role, artifacts such as pairs or labels) the next can read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import Method, Settings, and_own
from posttrain.core.registry import _PARTS, Card, Part, _relative, fold


class NotYet(UserError):
    """Something is asked for that an earlier part of the plan makes."""


@dataclass
class Context:
    """What phases share: the networks by role, the run, the settings."""

    run: Any
    config: Any
    roles: dict[str, Any]
    notes: dict[str, Any] = field(default_factory=dict)  # figures that phases report, for the summary
    phase: str = ""  # the name of what is being done now, with the number of its round
    given: dict[str, Any] = field(default_factory=dict)  # objects in place of what settings name: env, scorer
    read: set[str] = field(default_factory=set)  # what was asked of the settings: task, reward, pairs
    made: dict[Any, Any] = field(default_factory=dict)  # what was built from the settings, so that a file is read once
    asked: Collection[str] | None = None  # the settings that somebody gave; None: nobody knows

    def role(self, name: str) -> Any:
        if name not in self.roles:
            raise NotYet(f"no phase has made the role {name!r} yet; there are: {', '.join(self.roles)}")
        return self.roles[name]

    def gave(self, setting: str) -> bool:
        """Whether somebody gave a setting, be it the value that it has by itself; where nobody knows, whether it has another one."""
        if self.asked is not None:
            return setting in self.asked
        return bool(getattr(self.config, setting) != getattr(type(self.config)(), setting))

    def decide(self, question: str, test: Callable[[Context], bool]) -> bool:
        """The answer that was given the first time, also after a restart: notes know more by then."""
        decided: dict[str, bool] = self.notes.setdefault("decisions", {})
        if question not in decided:
            decided[question] = bool(test(self))
            self.run.write_notes(self.notes)
        return decided[question]


def round_of(context: Context) -> int:
    """Which round of a cycle is done now, from 1 on."""
    number = context.phase.rpartition(".")[2]
    if not number.isdecimal():
        raise NotYet("no round of the plan has begun")
    return int(number)


@dataclass(frozen=True)
class Phase:
    """One method applied to one role for a number of steps.

    env and rewards (steps too, if need be) are functions of the context, so that they may read what earlier phases
    left. make builds the role (default: the policy itself). changes are settings that differ from the run's.
    """

    name: str
    method: Method
    steps: int | Callable[[Context], int]
    env: Callable[[Context], Any]
    role: str = "policy"
    make: Callable[[Context], Any] | None = None
    rewards: Callable[[Context], Any] | None = None
    changes: dict[str, Any] = field(default_factory=dict)
    reference: str | Mapping[str, float] = (
        ""  # role of the reference policy; if empty, the trained role as the phase begins; by role a
    )
    # weight: log ref = sum_k w_k log pi_k, of roles that are copies (`Frozen.blend`)
    after: Callable[[Context], None] | None = None  # report or write artifacts once the phase has ended
    measured: bool = (
        False  # the policy is measured on held-out questions as this phase asks them (a prefill), not as the task does
    )
    critic: Callable[[Context], Any] | None = None  # what its critic begins as; if None, as the method says
    pace: float = 1.0  # its learning rate in that of the run


@dataclass(frozen=True)
class Do:
    """A piece of work without learning: sample and label pairs, measure, select data. It must write what it makes."""

    name: str
    work: Callable[[Context], None]


@dataclass(frozen=True)
class Copy:
    """A copy of a role under another name: the policy of SFT as a reference, a past self as opponent."""

    role: str
    to: str
    name: str = ""


@dataclass(frozen=True)
class Make:
    """A role from others, in place of what it was: two policies merged into one. It is made again after a restart."""

    role: str
    make: Callable[[Context], Any]
    name: str = ""


@dataclass(frozen=True)
class Cycle:
    """Parts one after another, again and again: `times` rounds at most, or until the gate passes."""

    parts: tuple[Any, ...]
    times: int
    until: Callable[[Context], bool] | None = None


@dataclass(frozen=True)
class Gate:
    """The plan continues only if the test passes; otherwise it ends here with a message."""

    name: str
    test: Callable[[Context], bool]
    otherwise: str = ""


def alternate(*parts: Any, times: int, until: Callable[[Context], bool] | None = None) -> Cycle:
    """Two or more roles trained in turn."""
    return Cycle(parts, times, until)


@dataclass(frozen=True)
class Plan:
    """What follows what. `@plan` tells it its name, title, paper, page and options."""

    parts: tuple[Any, ...]
    name: str = ""
    title: str = ""
    paper: str = ""
    doc: str = ""
    options: dict[str, Any] = field(default_factory=dict)  # what it was built with: part of a run's settings
    ready: Callable[[Context], None] | None = None  # raises where something is missing, before anything is loaded
    missing: str = ""  # what must be given before it can run, and how; it is shown and read without
    idle: Callable[[Context], Mapping[str, str]] | None = (
        None  # options that nothing reads in a run with these settings, and why
    )
    uses: tuple[str, ...] | None = None  # which of --task, --reward and --steps it reads; None: as `@plan` says
    settings: Settings = ()  # of a run, where nobody gives them: ("sampling.temperature", 1.2)

    def own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that somebody gave, nested as Config is, and the plan's own where they gave none."""
        return and_own(given, self.settings)

    def phases(self) -> list[Phase]:
        """Every phase, those of cycles once."""
        return [part for part in _flat(self.parts) if isinstance(part, Phase)]

    def walk(self, context: Context) -> Iterator[Phase | Do | Copy | Make]:
        """The phases in the order they run, each with a name of its own; gates are asked on the way."""
        seen: set[str] = set()
        for part in _walk(self.parts, context, ""):
            if part.name in seen and not isinstance(part, (Copy, Make)):
                raise UserError(f"two phases of the plan {self.name!r} are named {part.name!r}; names say what is done")
            seen.add(part.name)
            yield part


class Stopped(Exception):
    """A gate did not pass; the plan ends without error."""


def _flat(parts: tuple[Any, ...]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, Cycle):
            yield from _flat(part.parts)
        else:
            yield part


def _walk(parts: tuple[Any, ...], context: Context, tag: str) -> Iterator[Phase | Do | Copy | Make]:
    for at, part in enumerate(parts):
        if isinstance(part, (Phase, Do, Copy, Make)):
            yield replace(part, name=f"{part.name}{tag}")
        elif isinstance(part, Cycle):
            for i in range(part.times):
                yield from _walk(part.parts, context, f"{tag}.{i + 1}")
                if part.until and context.decide(f"cycle{at}{tag}.{i + 1}", part.until):
                    break
        elif isinstance(part, Gate):
            if not context.decide(f"{part.name}{tag}", part.test):
                raise Stopped(part.otherwise or f"the gate {part.name!r} did not pass")
        else:
            raise UserError(f"a plan is made of Phase, Do, Copy, Make, Cycle and Gate, not {type(part).__name__}")


def plan(
    *, paper: str = "", title: str = "", uses: tuple[str, ...] = ("task", "reward")
) -> Callable[[Callable[..., Plan]], Callable[..., Plan]]:
    """Register a plan: `@plan(paper=...)` on a function of keyword options that returns `Plan(parts)`.

    Its docstring is its page. The plan is told its name, title and paper, and the options it was built with. uses: which of
    --task, --reward and --steps it reads (where that depends on its options, `Plan(parts, uses=...)` says it); one that it does not
    is refused. What phases read (prompts, lr, num_generations ...) is known from them.
    """

    def register(build: Callable[..., Plan]) -> Callable[..., Plan]:
        doc, signature = inspect.cleandoc(build.__doc__ or ""), inspect.signature(build)
        name, file = fold(build.__name__), _relative(inspect.getsourcefile(build))
        made = Card(name, "plan", title or doc.split("\n")[0].split(":")[0], paper, file=file, doc=doc)

        @wraps(build)
        def told(*args: Any, **kwargs: Any) -> Plan:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            whole, options = build(*args, **kwargs), dict(given.arguments)
            asks = uses if whole.uses is None else whole.uses
            return replace(whole, name=name, title=made.title, paper=paper, doc=doc, options=options, uses=asks)

        _PARTS["plan"][made.name] = Part(told, made)
        return told

    return register
