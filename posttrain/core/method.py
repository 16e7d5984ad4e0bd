"""A method is one choice a stage. A new method is a difference: `dr_grpo = grpo.but(advantage=dr_grpo, ...)`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.registry import _PARTS, STAGES, Card, Part, _relative, find, fold

# field -> the stages its parts come from, for names given on the command line
FIELD_STAGES = {
    "prompts": ("prompts",),
    "rollout": ("rollout",),
    "shaping": ("shaping",),
    "keep": ("keep",),
    "advantage": ("advantage",),
    "loss": ("policy_loss", "preference_loss", "supervised_loss", "reward_model_loss"),
    "aggregate": ("aggregate",),
    "terms": ("term",),
    "reference": ("reference",),
    "optimiser": ("optimiser",),
}
_MANY = ("shaping", "keep", "terms")


@dataclass(frozen=True)
class Method:
    """What happens at each stage of the loop. Fields are parts; a tuple where several may follow one another."""

    name: str
    prompts: Part
    rollout: Part
    advantage: Part
    loss: Part
    aggregate: Part
    optimiser: Part
    reference: Part
    shaping: tuple[Part, ...] = ()
    keep: tuple[Part, ...] = ()
    terms: tuple[Part, ...] = ()
    epochs: int = 1  # passes over a step's rollouts
    minibatches: int = 1  # updates a pass
    title: str = ""
    paper: str = ""
    doc: str = ""

    def __post_init__(self) -> None:
        for key in ("epochs", "minibatches"):
            if not isinstance(getattr(self, key), int) or getattr(self, key) < 1:
                raise UserError(f"{key} is {getattr(self, key)!r}; it must be a whole number of at least 1")

    def but(self, **changes: Any) -> Method:
        """The same method with other choices; parts may be given by name: `grpo.but(loss="cispo(high=4)")`."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                close = nearest(name, known)
                hint = f"did you mean {close!r}?" if close else f"it has: {', '.join(known)}"
                raise UserError(f"a method has no stage {name!r}; {hint}")
        return replace(self, **{k: _parts(k, v) for k, v in changes.items()})

    def parts(self) -> dict[str, tuple[Part, ...]]:
        """The parts by stage, in the order of the loop."""
        out = {}
        for stage in FIELD_STAGES:
            value = getattr(self, stage)
            out[stage] = value if isinstance(value, tuple) else (value,)
        return out

    @property
    def scores(self) -> bool:
        """Whether it trains a score head (a reward model), not what the policy says."""
        return "score" in self.loss.card.needs

    @property
    def needs(self) -> set[str]:
        """Streams that some part cannot do without."""
        return {need for group in self.parts().values() for part in group for need in part.card.needs}

    def describe(self) -> dict[str, Any]:
        """Names and parameters, for config files and the fingerprint of a run."""
        out: dict[str, Any] = {k: [{"part": p.name, **p.defaults()} for p in ps] for k, ps in self.parts().items()}
        return {"name": self.name, **out, "epochs": self.epochs, "minibatches": self.minibatches}


def _parts(field: str, value: Any) -> Any:
    if field not in FIELD_STAGES:
        return value
    many = field in _MANY
    items = value if isinstance(value, (tuple, list)) else (value,)
    found = tuple(find(v, *FIELD_STAGES[field]) if isinstance(v, str) else v for v in items)
    for part in found:
        if not isinstance(part, Part) or part.card.stage not in FIELD_STAGES[field]:
            got = f"a {STAGES[part.card.stage]}" if isinstance(part, Part) else repr(part)
            raise UserError(f"{field} takes a part of the stage {' or '.join(FIELD_STAGES[field])}, not {got}")
    if not many and len(found) != 1:
        raise UserError(f"{field} takes exactly one part, got {len(found)}")
    return found if many else found[0]


def method(m: Method, file: str) -> Method:
    """Register a method: `grpo = method(Method(...), __file__)`. Its name is its place in `list`, `find` and `show`."""
    card = Card(fold(m.name), "method", m.title or m.name, m.paper, file=_relative(file), doc=m.doc)
    _PARTS["method"][card.name] = Part(lambda: m, card)
    return m


def find_method(name: str) -> Method:
    """The method of that name; `find_method("grpo(epochs=2)")` changes plain fields too."""
    part = find(name.split("(")[0], "method")
    built: Method = part.fn()
    from posttrain.core.registry import parse

    _, changes = parse(name)
    return built.but(**changes) if changes else built
