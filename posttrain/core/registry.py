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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import posttrain
from posttrain.core import index
from posttrain.core.errors import UserError, nearest, unknown

C = TypeVar("C", bound=type)

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
    data: str = ""  # for rollouts: what they read besides prompts: demonstrations, pairs, logs or steps
    at_test: bool = False  # for rollouts: it is how the policy answers, not only how it explores, so tests use it too
    file: str = ""
    doc: str = ""


@dataclass(frozen=True)
class Part:
    """A registered function or class with its parameters bound. Calling it calls the formula."""

    fn: Callable[..., Any]
    card: Card
    params: dict[str, Any] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **{**self.params, **kwargs})

    def but(self, **params: Any) -> Part:
        """The same part with other parameters; unknown ones fail with the nearest match."""
        known = self.defaults()
        for name in params:
            if name not in known:
                close = nearest(name, known)
                hint = f"did you mean {close!r}?" if close else f"it takes: {', '.join(known) or 'nothing'}"
                raise UserError(f"{self.card.name} has no parameter {name!r}; {hint}")
        return Part(self.fn, self.card, {**self.params, **params})

    def defaults(self) -> dict[str, Any]:
        """Keyword parameters with the values in force."""
        signature = inspect.signature(self.fn)
        known = {n: p.default for n, p in signature.parameters.items() if p.default is not inspect.Parameter.empty}
        return {**known, **self.params}

    def live(self) -> Any:
        """What a run calls: a fresh object for a part with state, the part itself otherwise."""
        return self.fn(**self.params) if inspect.isclass(self.fn) else self

    @property
    def name(self) -> str:
        return self.card.name

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.params.items())
        return f"{self.name}({inside})" if inside else self.name

    def __repr__(self) -> str:
        return str(self)


def fold(name: str) -> str:
    """Names are compared without case, and with - for _, so that `dr_grpo` and `Dr-GRPO` are one."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def stage(kind: str) -> Callable[..., Any]:
    """The decorator of a stage: `policy_loss = stage("policy_loss")`. A part's name is its function's, or `name`."""

    def decorator(
        *, name: str = "", title: str = "", paper: str = "", base: str = "", system: str = "",
        laws: tuple[str, ...] = (), **more: Any,
    ) -> Callable[[Callable[..., Any]], Part]:  # fmt: skip
        def register(fn: Callable[..., Any]) -> Part:
            doc = inspect.cleandoc(fn.__doc__ or "")
            first = doc.split("\n")[0]
            card = Card(
                fold(name or fn.__name__), kind, title or first.split(":")[0], paper, base, system, laws,
                file=_relative(inspect.getsourcefile(fn)), doc=doc, **more,
            )  # fmt: skip
            return _add(Part(fn, card))

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


def _add(part: Part) -> Part:
    shelf = _PARTS[part.card.stage]
    old = shelf.get(part.name)
    before = old.card.file if old else _claimed(part.card)
    if before and before != part.card.file:
        raise UserError(f"two {part.card.stage} parts are named {part.name!r}: {before} and {part.card.file}")
    shelf[part.name] = part
    return part


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
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return word.strip(), {k.arg or "": ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise UserError(f"cannot read {text!r}; write it like {word.strip()}(name=value, other=0.5)") from None


def split_sum(spec: str) -> list[str]:
    """The summands of a spec; a + inside parentheses or quotes belongs to a parameter."""
    out, depth, quote = [""], 0, ""
    for c in spec:
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        else:
            depth += (c == "(") - (c == ")")
        if c == "+" and depth == 0 and not quote:
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
