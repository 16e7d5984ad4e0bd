"""Parts and their cards. A file registers by existing: its decorated functions are found by walking the stage folders.

A part is a pure function (or, where state lives between steps, a small class) with a card: the stage it belongs to, the
paper it comes from, the laws it claims. `part.but(clip=0.3)` is the same part with another parameter; unknown
parameters fail at once with the nearest match.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import posttrain
from posttrain.core import index
from posttrain.core.errors import UserError, unknown
from posttrain.core.part import Args, Decorator, Register, Result
from posttrain.core.part import Card as Card
from posttrain.core.part import Part as Part
from posttrain.core.typed import shown

C = TypeVar("C", bound=type)
_LONGEST = 4000  # characters of a part with its parameters, as typed

# stage name -> what it is called in an error; the order is the order of the loop
STAGES = {
    "environment": "task",
    "prompts": "prompt sampler",
    "rollout": "rollout",
    "reward": "reward",
    "scorer": "scorer",
    "shaping": "reward shaping",
    "select": "selection",
    "advantage": "advantage",
    "policy_loss": "loss",
    "preference_loss": "loss",
    "supervised_loss": "loss",
    "reward_model_loss": "loss",
    "term": "term",
    "aggregate": "aggregation",
    "optimiser": "optimiser",
    "reference": "reference",
    "decoding": "decoder",
    "eval": "eval",
    "method": "method",
    "plan": "plan",
}
LOSSES = ("policy_loss", "preference_loss", "supervised_loss", "reward_model_loss")
_FOLDERS = [
    "environments",
    "prompts",
    "rollouts",
    "rewards",
    "advantages",
    "losses",
    "weights",
    "decoding",
    "evals",
    "methods",
    "select",
    "systems",
]
_PARTS: dict[str, dict[str, Part]] = {stage: {} for stage in STAGES}


def fold(name: str) -> str:
    """Names are compared without case, and with - for _, so that `dr_grpo` and `Dr-GRPO` are one."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def stage(kind: str) -> Register:
    """The decorator of a stage: `policy_loss = stage("policy_loss")`. A part's name is its function's, or `name`."""

    def decorator(
        *, name: str = "", title: str = "", paper: str = "", base: str = "", system: str = "",
        laws: tuple[str, ...] = (), **more: Any,
    ) -> Decorator:  # fmt: skip
        def register(fn: Callable[Args, Result], /) -> Part[Args, Result]:
            doc = inspect.cleandoc(fn.__doc__ or "")
            first = doc.split("\n")[0]
            card = Card(
                fold(name or fn.__name__), kind, title or first.split(":")[0], paper, base, system, laws,
                file=_relative(inspect.getsourcefile(fn)), doc=doc, **more,
            )  # fmt: skip
            part = Part(fn, card)
            _add(part)
            return part

        return register

    return decorator


def scorer(*, title: str = "", paper: str = "") -> Callable[[C], C]:
    """Register a class as a scorer: `WinRate` is found as win-rate. The class stays a class, since plans build it."""

    def register(cls: C) -> C:
        doc = inspect.cleandoc(cls.__doc__ or "")
        name = fold(re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__))
        file = _relative(inspect.getsourcefile(cls))
        _add(Part(cls, Card(name, "scorer", title or doc.split(":")[0], paper, file=file, doc=doc)))
        return cls

    return register


def _relative(file: str | None) -> str:
    root = Path(posttrain.__file__).parent.parent
    path = Path(file or "").resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _add(part: Part) -> None:
    shelf = _PARTS[part.card.stage]
    old = shelf.get(part.name)
    before = old.card.file if old else _claimed(part.card)
    if before and before != part.card.file:
        raise UserError(f"two {part.card.stage} parts are named {part.name!r}: {before} and {part.card.file}")
    shelf[part.name] = part


def _claimed(card: Card) -> str:
    """The file of the package that has the name of a user's part: it need not be imported to be in the way."""
    listed = index.row(card.stage, card.name) if not index.module_name(card.file) else None
    return listed["file"] if listed else ""


@cache
def discover() -> None:
    """Import every file of the stage folders, so that each registers its parts."""
    for module in modules():
        importlib.import_module(module)


def discover_new() -> None:
    """Import the files that the index was made without: a new file is listed and found before `make index`."""
    for module in sorted(set(modules()) - set(index.index()["modules"])):
        importlib.import_module(module)


def modules() -> list[str]:
    """Every module of the stage folders, by what lies on the disk: nothing is imported."""
    root = Path(posttrain.__file__).parent
    files = [f.relative_to(root) for folder in _FOLDERS for f in sorted((root / folder).rglob("*.py"))]
    plain = [f for f in files if not (f.stem.startswith("_") and f.stem != "__init__")]
    names = [".".join(("posttrain", *f.parent.parts, *([] if f.stem == "__init__" else [f.stem]))) for f in plain]
    return list(dict.fromkeys(names))


def parts(*stages: str) -> list[Part]:
    """Every registered part of these stages (of all when none is named), in the order of the loop."""
    discover()
    return [p for s in stages or STAGES for _, p in sorted(_PARTS[s].items())]


def find(name: str, *stages: str) -> Part:
    """The part of that name in these stages; `find("cispo(high=4)", "policy_loss")` binds parameters too.

    Only the module that the index names is imported; a name that the index does not know is looked for in every file.
    """
    word, params = parse(name)
    chosen = stages or tuple(STAGES)
    part = _first(fold(word), chosen, _lookup)
    if part is None:
        discover()
        part = _first(fold(word), chosen, lambda stage, name: _PARTS[stage].get(name))
    if part is None:
        kinds = list(dict.fromkeys(STAGES[s] for s in stages)) or ["part"]
        raise unknown(" or ".join(kinds), word, [n for s in chosen for n in _PARTS[s]])
    return part.but(**params)


def _first(name: str, stages: tuple[str, ...], look: Callable[[str, str], Part | None]) -> Part | None:
    return next((found for found in (look(stage, name) for stage in stages) if found), None)


def _lookup(stage: str, name: str) -> Part | None:
    """Registered already, or registered by the module that the index names; None where that module is gone or has it no more."""
    module = index.module_of(stage, name)
    if name not in _PARTS[stage] and module:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            if not module.startswith(error.name or "?"):  # a dependency is missing: that is another error
                raise
    return _PARTS[stage].get(name)


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """`"cispo(high=4)"` -> `("cispo", {"high": 4})`; values are Python literals, nothing is run."""
    word, open_, rest = text.partition("(")
    if not open_:
        return word.strip(), {}
    found = _keywords(rest) if len(text) <= _LONGEST else None
    if found is None:
        raise UserError(f"cannot read {shown(text)}; write it like {shown(word.strip())[1:-1]}(name=value, other=0.5)")
    return word.strip(), found


def _keywords(inside: str) -> dict[str, Any] | None:
    """The parameters of a call as literals; None where it is not one, or so deeply nested that Python gives up."""
    try:
        call = ast.parse(f"f({inside}", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        return {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def split_sum(spec: str, separator: str = "+") -> list[str]:
    """The summands of a spec; a + inside brackets or quotes belongs to a parameter."""
    out, depth, quote = [""], 0, ""
    for c in spec:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        else:
            depth += (c in "([{") - (c in ")]}")
        if c == separator and depth == 0 and not quote:
            out.append("")
        else:
            out[-1] += c
    return [piece.strip() for piece in out]


environment = stage("environment")
prompt_sampler = stage("prompts")
rollout = stage("rollout")
reward = stage("reward")
shaping = stage("shaping")
select = stage("select")
advantage = stage("advantage")
policy_loss = stage("policy_loss")
preference_loss = stage("preference_loss")
supervised_loss = stage("supervised_loss")
reward_model_loss = stage("reward_model_loss")
term = stage("term")
aggregate = stage("aggregate")
optimiser = stage("optimiser")
reference = stage("reference")
decoding = stage("decoding")
evaluation = stage("eval")
