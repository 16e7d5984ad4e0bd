"""Parts and their cards. A file registers by existing: its decorated functions are found by walking the stage folders.

A part is a pure function (or, where state lives between steps, a small class) with a card: the stage it belongs to, the
paper it comes from, the laws it claims. `part.but(clip=0.3)` is the same part with another parameter; unknown
parameters fail at once with the nearest match.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import posttrain
from posttrain.core.errors import UserError, nearest, unknown

# stage name -> what it is called in an error; the order is the order of the loop
STAGES = {
    "environment": "task",
    "prompts": "prompt sampler",
    "rollout": "rollout",
    "reward": "reward",
    "shaping": "reward shaping",
    "keep": "filter",
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
    "claim": "claim",
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
    needs: tuple[str, ...] = ()  # streams it cannot do without: ref_logp, value, entropy, score
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
        laws: tuple[str, ...] = (), needs: tuple[str, ...] = (),
    ) -> Callable[[Callable[..., Any]], Part]:  # fmt: skip
        def register(fn: Callable[..., Any]) -> Part:
            doc = inspect.cleandoc(fn.__doc__ or "")
            first = doc.split("\n")[0]
            card = Card(
                fold(name or fn.__name__), kind, title or first.split(":")[0], paper, base, system, laws, needs,
                _relative(inspect.getsourcefile(fn)), doc,
            )  # fmt: skip
            return _add(Part(fn, card))

        return register

    return decorator


def _relative(file: str | None) -> str:
    root = Path(posttrain.__file__).parent.parent
    path = Path(file or "").resolve()
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _add(part: Part) -> Part:
    shelf = _PARTS[part.card.stage]
    old = shelf.get(part.name)
    if old and old.card.file != part.card.file:
        raise UserError(f"two {part.card.stage} parts are named {part.name!r}: {old.card.file} and {part.card.file}")
    shelf[part.name] = part
    return part


@cache
def discover() -> None:
    """Import every file of the stage folders, so that each registers its parts."""
    for folder in _FOLDERS:
        package = importlib.import_module(f"posttrain.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"posttrain.{folder}."):
            if not module.name.rsplit(".", 1)[-1].startswith("_"):
                importlib.import_module(module.name)


def parts(*stages: str) -> list[Part]:
    """Every registered part of these stages (of all when none is named), in the order of the loop."""
    discover()
    return [p for s in stages or STAGES for _, p in sorted(_PARTS[s].items())]


def find(name: str, *stages: str) -> Part:
    """The part of that name in these stages; `find("cispo(high=4)", "policy_loss")` binds parameters too."""
    discover()
    word, params = parse(name)
    for s in stages or STAGES:
        if fold(word) in _PARTS[s]:
            return _PARTS[s][fold(word)].but(**params)
    kinds = list(dict.fromkeys(STAGES[s] for s in stages)) or ["part"]
    raise unknown(" or ".join(kinds), word, [n for s in stages or STAGES for n in _PARTS[s]])


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
keep = stage("keep")
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
