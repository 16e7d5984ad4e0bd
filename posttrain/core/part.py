"""A part: a formula with its card and its parameters. Its signature is the formula's, so type checkers see what it takes.

`Part` alone means a part of any signature; `Part[P, R]` is what the decorator of a stage makes of a function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

from typing_extensions import ParamSpec, TypeVar

from posttrain.core.errors import UserError, nearest
from posttrain.core.typed import checked, parameter_hints

P = ParamSpec("P", default=...)
R = TypeVar("R", default=Any)
Args = ParamSpec("Args")
Result = TypeVar("Result")
T = TypeVar("T")


@dataclass(frozen=True)
class Card:
    """What is known about a part besides its code."""

    name: str
    stage: str
    title: str
    paper: str = ""  # "arXiv:1707.06347", or "" where the idea is folklore
    base: str = ""  # the part it is a variation of
    system: str = ""  # the id of the published system it stands for, when that is not its own name
    laws: tuple[str, ...] = ()  # names in core.laws that a test holds it to
    reads: tuple[str, ...] = ()  # streams of the batch that its formula reads besides mask_BT, logp_BT and length_B
    provides: tuple[str, ...] = ()  # streams that it makes: pairs, targets of a critic
    data: str = ""  # for rollouts: what they read besides prompts: demonstrations, pairs, lists, labels, logs or steps
    at_test: bool = False  # for rollouts: it is how the policy answers, not only how it explores, so tests use it too
    per: str = (
        ""  # for losses: what one value is of: pair (preference losses, unless they say), list, answer; else token
    )
    whole: Callable[..., Any] | None = None  # for losses: what is taken from the whole minibatch (weights/minibatch.py)
    follows: tuple[
        tuple[str, str], ...
    ] = ()  # (parameter, setting): where nobody gives the parameter, the run's setting is it
    file: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Part(Generic[P, R]):
    """A registered function or class with its parameters bound. Calling it calls the formula."""

    fn: Callable[P, R]
    card: Card
    params: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        bound: Callable[..., R] = self.fn  # parameters that are bound belong to P too, which no type can say
        return bound(*args, **{**self.params, **kwargs})

    def but(self, **params: Any) -> Part[P, R]:
        """The same part with other parameters; unknown ones fail with the nearest match."""
        known = self.defaults()
        for name in params:
            if name not in known:
                close = nearest(name, known)
                hint = f"did you mean {close!r}?" if close else f"it takes: {', '.join(known) or 'nothing'}"
                raise UserError(f"{self.card.name} has no parameter {name!r}; {hint}")
        return Part(self.fn, self.card, {**self.params, **self._typed(params)})

    def within(self, settings: Mapping[str, Any]) -> Part[P, R]:
        """The same part in a run of these settings: parameters that follow one (`Card.follows`) and are None get its value."""
        known = self.defaults()
        found = {name: settings[key] for name, key in self.card.follows if known[name] is None and key in settings}
        return self.but(**found) if found else self

    def _typed(self, params: dict[str, Any]) -> dict[str, Any]:
        """The parameters, each checked against its annotation; a default is right whatever its annotation says."""
        hints = parameter_hints(self.fn) if params else {}
        own = inspect.signature(self.fn).parameters if params else {}
        return {
            n: x if x is own[n].default else checked(f"{n} of {self.card.name}", x, hints[n]) for n, x in params.items()
        }

    def defaults(self) -> dict[str, Any]:
        """Keyword parameters with the values in force."""
        signature = inspect.signature(self.fn)
        known = {n: p.default for n, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
        return {**known, **self.params}

    def live(self) -> Any:
        """What a run calls: a fresh object for a part with state, the part itself otherwise."""
        made: Callable[..., R] = self.fn
        return made(**self.params) if inspect.isclass(self.fn) else self

    @property
    def name(self) -> str:
        return self.card.name

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.params.items())
        return f"{self.name}({inside})" if inside else self.name

    def __repr__(self) -> str:
        return str(self)


def settled(value: T | None, name: str, part: str, setting: str = "max_tokens") -> T:
    """A parameter that follows a setting of the run; outside of a run somebody must give it."""
    if value is None:
        raise UserError(
            f"{name} of {part} is the run's {setting} unless it is given, and here is no run; use {part}({name}=...)"
        )
    return value


class Decorator(Protocol):
    """Makes a part of a function, or of a class that keeps state between steps, with the same signature."""

    def __call__(self, fn: Callable[Args, Result], /) -> Part[Args, Result]: ...


class Register(Protocol):
    """The decorator of a stage before it is told what the part is: `@policy_loss(paper="arXiv:1707.06347")`."""

    def __call__(
        self, *, name: str = "", title: str = "", paper: str = "", base: str = "", system: str = "",
        laws: tuple[str, ...] = (), **more: Any,
    ) -> Decorator: ...  # fmt: skip
