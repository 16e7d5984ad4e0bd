"""A method picks one part for each stage. A new method is a difference: `dr_grpo = grpo.but(advantage=dr_grpo, ...)`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError, nearest
from posttrain.core.registry import _PARTS, STAGES, Card, Part, _relative, find, fold, parse
from posttrain.core.typed import shown

# field -> the stages its parts come from, for names given on the command line
FIELD_STAGES = {
    "prompts": ("prompts",),
    "rollout": ("rollout",),
    "shaping": ("shaping",),
    "select": ("select",),
    "advantage": ("advantage",),
    "loss": ("policy_loss", "preference_loss", "supervised_loss", "reward_model_loss"),
    "aggregate": ("aggregate",),
    "terms": ("term",),
    "reference": ("reference",),
    "optimiser": ("optimiser",),
}
Settings = tuple[tuple[str, Any], ...]  # name -> value; "sampling.temperature" is one inside of another
_MANY = ("shaping", "select", "terms")
COUNTS = ("epochs", "minibatches", "rounds")
_TYPED = (*FIELD_STAGES, *COUNTS)  # what a name with parameters may change: grpo(epochs=2)


@dataclass(frozen=True)
class Objective:
    """What one learner minimises. GRPO has one; SAC has three: actor, critics and temperature, from the same rows.

    role: the learner's name, and the parameters it moves: `Policy.parameters_of(role)` where the policy has parts, all of the
    role's own policy otherwise. rows: the role whose rollouts it learns from.
    """

    role: str
    loss: Part
    aggregate: Part
    optimiser: Part
    reference: Part
    terms: tuple[Part, ...] = ()
    every: int = 1  # updates at every so many steps
    rows: str = "policy"
    pace: float = 1.0  # its learning rate in that of the run
    max_norm: float | None = None  # its gradients are clipped to this norm; None: as the run's

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.loss, self.aggregate, *self.terms)

    @property
    def scores(self) -> bool:
        """Whether it trains a score head (a reward model), not what the policy says."""
        return not {"score_B", "scores_BK"}.isdisjoint(self.loss.card.reads)

    @property
    def reads(self) -> set[str]:
        """Streams that its loss and terms read."""
        return {name for part in self.parts for name in part.card.reads}


def and_own(given: Mapping[str, Any], own: Settings) -> dict[str, Any]:
    """The settings that somebody gave, nested as Config is, and those of a method or plan where they gave none."""
    out = dict(given)
    for key, value in own:
        outer, _, inner = key.partition(".")
        if not inner:
            out.setdefault(outer, value)
        elif isinstance(out.get(outer, {}), Mapping):
            out[outer] = {inner: value, **out.get(outer, {})}
    return out


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
    select: tuple[Part, ...] = ()
    terms: tuple[Part, ...] = ()
    others: tuple[Objective, ...] = ()  # objectives besides the policy's own: critics, opponents, a temperature
    epochs: int = 1  # passes over a step's rollouts
    minibatches: int = 1  # updates per pass
    critic: CriticSettings = field(default_factory=CriticSettings)  # how its critic learns, where it has one
    rounds: int = 1  # of prompts at a step, at most: more than 1 refills what the selection dropped (dynamic sampling)
    settings: Settings = ()  # of a run, where nobody gives them: ("sampling.temperature", 1.2)
    title: str = ""
    paper: str = ""
    doc: str = ""

    def __post_init__(self) -> None:
        for key in COUNTS:
            value = getattr(self, key)
            if type(value) is not int or not 1 <= value <= 10**6:
                raise UserError(f"{key} is {shown(value)}; it must be a whole number of at least 1")

    def but(self, **changes: Any) -> Method:
        """The same method with other choices; parts may be given by name: `grpo.but(loss="cispo(high=4)")`."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                close = nearest(name, known)
                hint = f"did you mean {close!r}?" if close else f"it has: {', '.join(known)}"
                raise UserError(f"a method has no stage {name!r}; {hint}")
        return replace(self, **{k: _parts(k, v) for k, v in changes.items()})

    def own(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that somebody gave, nested as Config is, and the method's own where they gave none."""
        return and_own(given, self.settings)

    def within(self, settings: Mapping[str, Any]) -> Method:
        """The same method in a run of these settings (`core.config.followed`): parameters that follow one get its value."""
        own = {k: _within(getattr(self, k), settings) for k in FIELD_STAGES}
        fields_of = ("loss", "aggregate", "optimiser", "reference", "terms")
        others = tuple(replace(o, **{k: _within(getattr(o, k), settings) for k in fields_of}) for o in self.others)
        return replace(self, **own, others=others)

    def parts(self) -> dict[str, tuple[Part, ...]]:
        """The parts by stage, in the order of the loop."""
        out = {}
        for stage in FIELD_STAGES:
            value = getattr(self, stage)
            out[stage] = value if isinstance(value, tuple) else (value,)
        return out

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """What each learner minimises, in the order of their updates; the policy's own comes first."""
        own = Objective("policy", self.loss, self.aggregate, self.optimiser, self.reference, self.terms)
        return (own, *self.others)

    @property
    def scores(self) -> bool:
        """Whether it trains a score head (a reward model), not what the policy says."""
        return self.objectives[0].scores

    @property
    def reads(self) -> set[str]:
        """Streams that some part reads."""
        every = [part for group in self.parts().values() for part in group]
        return {name for part in every for name in part.card.reads}.union(*(o.reads for o in self.others))

    @property
    def provides(self) -> set[str]:
        """Streams that some part makes: pairs, targets of a critic, marks."""
        return {name for group in self.parts().values() for part in group for name in part.card.provides}

    def describe(self) -> dict[str, Any]:
        """Names and parameters, for config files and the fingerprint of a run."""
        out: dict[str, Any] = {k: [{"part": p.name, **p.defaults()} for p in ps] for k, ps in self.parts().items()}
        plain: dict[str, Any] = {"epochs": self.epochs, "minibatches": self.minibatches}
        if self.critic != CriticSettings():
            plain["critic"] = asdict(self.critic)
        plain |= {"rounds": self.rounds} if self.rounds > 1 else {}
        if self.others:
            plain["others"] = [
                {
                    "role": o.role,
                    "every": o.every,
                    "rows": o.rows,
                    **({"pace": o.pace} if o.pace != 1.0 else {}),
                    "parts": [{"part": p.name, **p.defaults()} for p in o.parts],
                }
                for o in self.others
            ]
        return {"name": self.name, **out, **plain}


def _within(value: Any, settings: Mapping[str, Any]) -> Any:
    return tuple(p.within(settings) for p in value) if isinstance(value, tuple) else value.within(settings)


def _parts(field: str, value: Any) -> Any:
    if field not in FIELD_STAGES:
        return value
    many = field in _MANY
    items = value if isinstance(value, (tuple, list)) else (value,)
    found = tuple(find(v, *FIELD_STAGES[field]) if isinstance(v, str) else v for v in items)
    for part in found:
        if not isinstance(part, Part) or part.card.stage not in FIELD_STAGES[field]:
            got = f"a {STAGES[part.card.stage]}" if isinstance(part, Part) else shown(part)
            raise UserError(f"{field} takes a part of the stage {' or '.join(FIELD_STAGES[field])}, not {got}")
    if not many and len(found) != 1:
        raise UserError(f"{field} takes exactly one part, got {len(found)}")
    return found if many else found[0]


def method(m: Method) -> Method:
    """Register a method: `dapo = method(grpo.but(name="dapo", ...))`. Its card names the file that calls this."""
    file = sys._getframe(1).f_code.co_filename
    card = Card(fold(m.name), "method", m.title or m.name, m.paper, file=_relative(file), doc=m.doc)
    part = Part(lambda: m, card)
    _PARTS["method"][card.name] = part
    return m


def find_method(name: str) -> Method:
    """The method of that name; `find_method("grpo(epochs=2)")` changes plain fields too."""
    word, changes = parse(name)
    built: Method = find(word, "method").fn()
    for key in changes:
        if key not in _TYPED:
            close = nearest(key, _TYPED)
            hint = f"did you mean {close!r}?" if close else f"it takes: {', '.join(_TYPED)}"
            raise UserError(f"{word} has no parameter {key!r} that can be typed; {hint}")
    return built.but(**changes) if changes else built
