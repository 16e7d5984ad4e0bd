"""An option of a plan that was given and that nothing reads is a mistake, as a setting is: it is refused, with what to type.

Whether an option is read is seen by building the plan without it. Where the same phases come out, with the same functions over the same
values, whatever the option is, nothing that will run can tell the difference. What depends on --task or --reward, and not on other
options, a plan says itself (`Plan.idle`).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Plan
from posttrain.core.registry import find
from posttrain.runs.unused import counts_answers

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), CodeType, type)


def refuse_of_options(plan: Plan, context: Context) -> None:
    """One sentence for the first option that was given and that nothing reads, with the other options and with the run's settings."""
    told = plan.idle(context) if plan.idle else {}
    defaults = _defaults(plan)
    for name in given(plan):
        if name in told:
            raise UserError(f"{plan.name} does not read {typed(name)}: {told[name]}; leave it away")
        if not idle(plan, name):
            continue
        others = [o for o in given(plan) if o != name]
        freed = (o for o in others if not idle(plan, name, plan.options | {o: defaults[o]}))
        if other := next(freed, None):
            raise UserError(f"{plan.name} does not read {typed(name)} with {typed(other)}; leave one of the two away")
        raise UserError(f"{plan.name} does not read {typed(name)} with its other options as they are; leave it away")
    refuse_of_two_numbers(plan, context)


def refuse_of_two_numbers(plan: Plan, context: Context) -> None:
    """--num-generations says how many answers a prompt gets, and so does the option `n` of many plans: one would be lost."""
    if "n" not in given(plan) or not context.gave("num_generations"):
        return
    other = find(plan.name, "plan").fn(**plan.options | {"n": plan.options["n"] + 1})
    if _answers(plan) != _answers(other):
        raise UserError(
            f"{plan.name} got --num-generations and --plan.n, which both say how many answers a prompt gets; leave one of the two away"
        )


def _answers(plan: Plan) -> list[Any]:
    """How many answers to a prompt each phase samples."""
    return [p.method.rollout.defaults().get("n") for p in plan.phases() if counts_answers(p.method)]


def typed(option: str) -> str:
    """An option of a plan as it is typed."""
    return f"--plan.{option.replace('_', '-')}"


def given(plan: Plan) -> list[str]:
    """The options that are not as they would be by themselves."""
    known = _defaults(plan)
    return [k for k, v in plan.options.items() if k in known and _bare(v) != _bare(known[k])]


def idle(plan: Plan, name: str, options: Mapping[str, Any] | None = None) -> bool:
    """Whether the plan is the same one for every value of an option: as given, by itself, and for values near the given one (a number
    that is given may be what the plan would have chosen)."""
    build, options = find(plan.name, "plan").fn, plan.options if options is None else options
    seen = set()
    for value in (options[name], _defaults(plan)[name], *_near(options[name])):
        try:
            seen.add(likeness(build(**{**options, name: value})))
        except UserError:
            if value is options[name] or value == _defaults(plan)[name]:
                return False  # it is looked at, or needed
        if len(seen) > 1:
            return False
    return True


def likeness(plan: Plan) -> Any:
    """What a plan will do, to be compared with another one built by the same function; what it checks before is left out."""
    return Likeness().of((plan.parts, plan.settings))


class Likeness:
    """Values, functions and objects as nested tuples that are equal where nothing could tell the two apart. What cannot be looked into
    is like itself alone."""

    def __init__(self) -> None:
        self.seen: dict[
            int, tuple[int, Any]
        ] = {}  # each object with its number; it is held, so that no other gets its id

    def of(self, value: Any) -> Any:
        if isinstance(value, PLAIN):
            return type(value), value if not isinstance(value, float) else repr(value)
        if id(value) in self.seen:
            return "again", self.seen[id(value)][0]
        self.seen[id(value)] = len(self.seen), value
        return type(value), *(self.of(x) for x in self.inside(value))

    def inside(self, value: Any) -> Iterator[Any]:
        if isinstance(value, tuple | list):
            yield from value
        elif isinstance(value, set | frozenset):
            yield from sorted(value, key=repr)
        elif isinstance(value, Mapping):
            yield from (x for pair in value.items() for x in pair)
        elif isinstance(value, FunctionType):
            yield from (value.__code__, value.__defaults__, value.__kwdefaults__, dict(value.__dict__))
            yield from (_content(cell) for cell in value.__closure__ or ())
        elif isinstance(value, MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, torch.Tensor):
            yield from (str(value.dtype), value.tolist())
        elif hasattr(value, "__dict__") and not inspect.ismodule(value):
            yield from (dict(vars(value)), *(getattr(value, k, None) for k in _slots(type(value))))
        else:
            yield id(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a function that is not defined yet
        return "empty"


def _slots(kind: type) -> list[str]:
    return [k for c in kind.__mro__ for k in getattr(c, "__slots__", ()) if not k.startswith("__")]


def _defaults(plan: Plan) -> dict[str, Any]:
    try:
        known = inspect.signature(find(plan.name, "plan").fn).parameters
    except UserError:  # a plan that was made by hand has none
        return {}
    return {k: p.default for k, p in known.items()}


def _bare(value: Any) -> Any:
    """A value without what does not change it: spaces, and whether several are in a list."""
    if isinstance(value, str):
        return "".join(value.split())
    return tuple(map(_bare, value)) if isinstance(value, list | tuple) else value


def _near(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ()
    return (value + 1, value * 2, value - 1) if isinstance(value, int) else (value * 2, value / 2, value + 1)
