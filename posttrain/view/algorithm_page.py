"""A whole algorithm as one page of Markdown: the loop, every part with its source and parameters, what they call."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from posttrain.core import index
from posttrain.core.errors import unknown
from posttrain.core.evidence import attempts_file, evidence, files, in_words
from posttrain.core.method import FIELD_STAGES, Method, find_method
from posttrain.core.plan import Copy, Cycle, Do, Gate, Make, Phase, Plan
from posttrain.core.registry import _PARTS, STAGES, Card, Part, discover_new, find, fold, parse
from posttrain.view.attempts import tried

_PLUMBING = tuple(
    f"posttrain.core.{x}" for x in ("types", "turn", "batch", "protocols", "errors", "part", "registry", "sampling")
)
_STAGE_WORDS = {
    "prompts": "which prompts",
    "rollout": "how answers are made",
    "shaping": "what changes the rewards",
    "select": "which groups are learned from",
    "advantage": "who gets the credit",
    "loss": "what is minimised",
    "aggregate": "how token losses are averaged into one number",
    "terms": "what is added to the loss",
    "reference": "what the policy is held close to",
    "optimiser": "how weights move",
}


def page(name: str) -> str:
    """The page of a method, plan or part; `advantage/grpo` is the advantage where `grpo` alone is the method."""
    stage, slash, word = name.partition("/")
    part = find(word, stage_of(stage)) if slash else first(name)
    if part.card.stage == "method":
        return method_page(find_method(name.partition("/")[2] if slash else name), part.card)
    return plan_page(part) if part.card.stage == "plan" else part_page(part)


def stage_of(word: str) -> str:
    if word.replace("-", "_") not in STAGES:
        raise unknown("stage", word, STAGES)
    return word.replace("-", "_")


def first(name: str) -> Part:
    """The method or plan of that name, else the part; where parameters are a method's own fields, they are left out."""
    word = parse(name)[0]
    known = names()
    if fold(word) in {n for stage, n in known if stage in ("method", "plan")}:
        return find(word, "method", "plan")
    if fold(word) not in {n for _, n in known}:
        raise unknown("method, plan or part", word, {n for _, n in known})
    return find(name)


def names() -> set[tuple[str, str]]:
    """(stage, name) of every part: of the index, and of new files and those of --use."""
    discover_new()
    registered = {(stage, name) for stage, shelf in _PARTS.items() for name in shelf}
    return registered | {(r["stage"], r["name"]) for r in index.rows()}


# ---- three kinds of pages


def method_page(m: Method, card: Card) -> str:
    out = [*header(card), *others(card)]
    out += ["## The loop", fence(source_of(*loop_functions())), ""]
    shown: list[Any] = list(loop_functions())
    for stage in FIELD_STAGES:
        for part in m.parts()[stage]:
            out += section(part, f"{stage}: {part.name}, {_STAGE_WORDS[stage]}")
            shown.append(part.fn)
    rounds = (
        f", rounds={m.rounds} (of new prompts at a step, at most, while groups are dropped)" if m.rounds > 1 else ""
    )
    extra = [
        f"epochs={m.epochs} (passes over a step's answers), minibatches={m.minibatches} (updates per pass){rounds}",
        "",
    ]
    every = [p for group in m.parts().values() for p in group]
    return "\n".join([*out, "## Updates", *extra, *called_by(every, shown)]).rstrip() + "\n"


def part_page(part: Part) -> str:
    out = [*header(part.card), *others(part.card)]
    out += section(part, "The code")
    out += called_by([part], [part.fn])
    key = f"{part.card.stage}/{part.name}"
    users = [r["name"] for r in index.rows("method") if key in {p["part"] for p in r["parts"]}]
    if users:
        out += ["## Methods that use it", ", ".join(users)]
    return "\n".join(out).rstrip() + "\n"


def plan_page(part: Part) -> str:
    made: Plan = part()
    out = header(part.card)
    out += ["## What follows what", *outline(made.parts), ""]
    out += ["## The plan", parameters(part), fence(source(part.fn)), ""]
    shown: list[Any] = [part.fn]
    for phase in made.phases():
        for group in phase.method.parts().values():
            for one in group:
                if one.fn not in shown:
                    shown.append(one.fn)
                    out += section(one, f"{one.card.stage}: {one.name}")
    return "\n".join([*out, *called_by([part], shown)]).rstrip() + "\n"


# ---- pieces


def header(card: Card) -> list[str]:
    """Title, words, and facts with their evidence, from the index."""
    row = index.row_of(card)
    facts = [f"- {STAGES[card.stage]} in `{card.file}`"]
    if card.paper:
        title = f", {row['paper_title']}" if row["paper_title"] else ""
        facts.append(f"- paper: {card.paper}{link(card.paper)}{title}")
    if card.base:
        facts.append(f"- a variation of {card.base}")
    facts.append(f"- evidence: {in_words(evidence(row))}")
    facts += [f"  - {level}: {', '.join(found[:3])}" for level, found in files(row).items() if found]
    return [f"# {card.title}", "", card.doc, "", *facts, ""]


def claim_page(id: str) -> str | None:
    """A study that is a claim and no part: what the paper says, the experiment, and every attempt at it."""
    claim = index.index()["claims"].get(id)
    if claim is None:
        return None
    facts = [f"- claim in `{claim['file']}`, attempts in `{attempts_file(claim)}`"]
    facts.append(f"- paper: {claim['paper']}{link(claim['paper'])}")
    told = [claim["says"], claim["experiment"], f"Departures: {claim['departures']}" if claim["departures"] else ""]
    words = [line for text in told if text for line in (text, "")]
    return "\n".join([f"# {claim['title']}", "", *words, *facts, "", *tried(claim), ""])


def link(paper: str) -> str:
    kind, _, id = paper.partition(":")
    return f" <https://arxiv.org/abs/{id}>" if kind.lower() == "arxiv" and id else ""


def others(card: Card) -> list[str]:
    """Parts of the same name in other stages, and how to ask for them."""
    known = names()
    same = [stage for stage in STAGES if (stage, card.name) in known and stage != card.stage]
    return [f"See also: {', '.join(f'`posttrain show {s}/{card.name}`' for s in same)}", ""] if same else []


def section(part: Part, title: str) -> list[str]:
    return [
        f"## {title}",
        f"`{part.card.file}`{' ' + part.card.paper if part.card.paper else ''}",
        parameters(part),
        fence(source(part.fn)),
        "",
    ]


def parameters(part: Part) -> str:
    """The values in force; beside one that the method has changed, the part's own. One that follows a setting is told by its name."""
    own, follows = Part(part.fn, part.card).defaults(), dict(part.card.follows)

    def told(name: str, value: Any) -> str:
        return f"the run's {follows[name]}" if value is None and name in follows else repr(value)

    inside = [(k, told(k, v), told(k, own[k])) for k, v in part.defaults().items()]
    lines = [f"{k}={now}{'' if now == alone else f' (alone: {alone})'}" for k, now, alone in inside]
    return f"in force: {', '.join(lines)}" if lines else "no parameters"


def fence(code: str) -> str:
    return f"```python\n{code.rstrip()}\n```"


def called_by(some: Iterable[Part], shown: list[Any]) -> list[str]:
    """The functions and classes of posttrain that parts call, and those that these call; each once."""
    found: list[Any] = []
    for part in some:
        near = [x for x in helpers(part.fn) if x not in shown]
        far = [y for x in near if not x.__module__.startswith("posttrain.core.") for y in helpers(x) if y not in shown]
        found += [x for x in dict.fromkeys([*near, *far]) if x not in found]
    out: list[str] = ["## What they call"] if found else []
    for x in found:
        out += [f"`{x.__module__}.{x.__qualname__}`", fence(source(x)), ""]
    return out


def helpers(fn: Any) -> list[Any]:
    """What the source of a function names, where that is a function or class of posttrain and not plumbing."""
    space = vars(sys.modules[fn.__module__])
    found = []
    for node in ast.walk(tree(fn)):
        value: Any = None
        if isinstance(node, ast.Name):
            value = space.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = space.get(node.value.id)
            value = getattr(owner, node.attr, None) if inspect.ismodule(owner) else None
        value = value.fn if isinstance(value, Part) else value
        own = (inspect.isfunction(value) or inspect.isclass(value)) and value is not fn
        if own and value.__module__.startswith("posttrain.") and value.__module__ not in _PLUMBING:
            found.append(value)
    return list(dict.fromkeys(found))


def source(fn: Any) -> str:
    """The source without its decorators: the registry's are on the page already."""
    code = textwrap.dedent(inspect.getsource(inspect.unwrap(fn)))
    node = ast.parse(code).body[0]
    lines = code.splitlines()[node.lineno - 1 :]
    return "\n".join(re.sub(r"\s*# (noqa|fmt: skip|type: ignore).*$", "", line) for line in lines)


def tree(fn: Any) -> ast.AST:
    return ast.parse(source(fn))


def source_of(*functions: Any) -> str:
    return "\n\n\n".join(source(f) for f in functions)


def loop_functions() -> list[Any]:
    """The loop, what it calls on the way, and the number that is differentiated."""
    loop, loss = import_module("posttrain.train"), import_module("posttrain.losses.objective")
    return [loop.train, loop.select, loop.credit, loss.objective]


def outline(some: Iterable[Any], indent: str = "") -> list[str]:
    """Phases, work, cycles, gates, copies and merges, one line each."""
    out = []
    for part in some:
        if isinstance(part, Phase):
            steps = "as many steps as earlier phases decide" if callable(part.steps) else f"{part.steps} steps"
            out.append(f"{indent}- phase {part.name}: {part.method.name} on the {part.role}, {steps}")
        elif isinstance(part, Do):
            out.append(f"{indent}- do {part.name}: {(part.work.__doc__ or '').strip().split(chr(10))[0]}".rstrip(": "))
        elif isinstance(part, Cycle):
            out.append(f"{indent}- {part.times} times{', or until a test passes' if part.until else ''}:")
            out += outline(part.parts, indent + "  ")
        elif isinstance(part, Gate):
            out.append(f"{indent}- gate {part.name}: the plan goes on only if it passes")
        elif isinstance(part, Copy):
            out.append(f"{indent}- keep the {part.role} as it is now under the name {part.to}")
        elif isinstance(part, Make):
            out.append(
                f"{indent}- make the {part.role} anew: {(part.make.__doc__ or '').strip().split(chr(10))[0]}".rstrip(
                    ": "
                )
            )
    return out
