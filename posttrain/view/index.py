"""posttrain/index.json from the code, the tests' declarations and the recorded experiments. Needs a checkout.

python -m posttrain.view.index          write it (`make index`)
"""

from __future__ import annotations

import json
from dataclasses import fields
from importlib import import_module
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.index import INDEX, PACKAGE, Row, described
from posttrain.core.method import Method
from posttrain.core.plan import Plan
from posttrain.core.registry import STAGES, Card, Part, modules, parts

SCALE = PACKAGE.parent / "claims" / "scale"
_COMPUTES = (
    "shaping",
    "select",
    "advantage",
    "loss",
    "aggregate",
    "terms",
)  # fields of a method with a formula in them
_OTHERS = {f.name for f in fields(Card)} - {"name", "stage", "title", "paper", "base", "system", "file", "doc", "whole"}


def build() -> dict[str, Any]:
    """The whole index. Parts of users' files and of tests are not in it."""
    here = set(modules())
    every = {f"{p.card.stage}/{p.name}": p for s in STAGES for p in parts(s) if p.card.file.startswith("posttrain/")}
    declared = import_module("tests.scan_evidence").declared()
    for key, marks in declared.items():
        if key not in every:
            test = next(t for tests in marks.values() for t in tests)
            raise UserError(f"{test} declares {key!r}, which is no part; did you mean {nearest(key, every)!r}?")
    rows = {key: part_row(p, declared.get(key, {})) for key, p in every.items()}
    for key, part in every.items():
        if part.card.stage in ("method", "plan"):
            rows[key] |= whole_row(part, declared)
    return {
        "parts": rows, "claims": import_module("claims.machinery.evidence").all_told(), "real": real(), "tasks": tasks(),
        "models": list(import_module("posttrain.policies.load").NAMED), "modules": sorted(here),
    }  # fmt: skip


def part_row(part: Part, marks: dict[str, list[str]]) -> Row:
    """Card, parameters as text, and the tests that declare it."""
    said = {k: _text(v) for k, v in part.defaults().items()}
    more = {k: _plain(getattr(part.card, k)) for k in sorted(_OTHERS)}  # laws, reads, and what cards may hold in time
    return described(part.card) | more | {"module": registering(part), "parameters": said} | marks


def _text(value: Any) -> str:
    """A parameter's value; a function by its name, for where it lies in memory differs from run to run."""
    return getattr(value, "__name__", None) or repr(value)


def _written(part: Part) -> str:
    """As it would be given on the command line: cispo(high=4)."""
    inside = ", ".join(f"{k}={_text(v)}" for k, v in part.params.items())
    return f"{part.name}({inside})" if inside else part.name


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | set | frozenset) else value


def registering(part: Part) -> str:
    """The module to import so that the part is registered: that of its file, not of the function, which may be borrowed."""
    return str(described(part.card)["module"]).removesuffix(".__init__")


def whole_row(part: Part, declared: dict[str, Any]) -> Row:
    """The parts of a method or plan. It is derived when every part of it that computes is: one test for each."""
    methods = [part.fn()] if part.card.stage == "method" else methods_of(part.fn().parts)
    used = [(f, p) for m in methods for f, some in m.parts().items() for p in some]
    listed = {(f, _written(p)): f"{p.card.stage}/{p.name}" for f, p in used}
    told = [{"field": f, "part": key, "as": written} for (f, written), key in listed.items()]
    own = declared.get(f"{part.card.stage}/{part.name}", {}).get("derived", [])
    tests = [declared.get(f"{p.card.stage}/{p.name}", {}).get("derived", []) for f, p in used if f in _COMPUTES]
    derived = list(dict.fromkeys(t[0] for t in tests)) if all(tests) else []
    return {"parts": told, "derived": own or derived} | (
        {"outline": outline(part.fn())} if part.card.stage == "plan" else {}
    )


def methods_of(some: tuple[Any, ...]) -> list[Method]:
    """The methods of a plan's phases, in its cycles too."""
    inner = [m for part in some for m in methods_of(getattr(part, "parts", ()))]
    return inner + [part.method for part in some if hasattr(part, "method")]


def outline(plan: Plan) -> list[str]:
    """What follows what, one line each."""
    lines: list[str] = import_module("posttrain.view.algorithm_page").outline(plan.parts)
    return lines


def real() -> dict[str, Row]:
    """What was measured with real models, by system; curves stay in the files."""
    out = {}
    for path in sorted(SCALE.glob("*.json")):
        made = json.loads(path.read_text())
        told = {k: made[k] for k in ("model", "task", "samples", "steps", "found", "date", "hardware", "command")}
        out[made["id"]] = told | {"file": str(path.relative_to(PACKAGE.parent))}
    return out


def tasks() -> list[Row]:
    """Tasks that are always there; those of reasoning-gym are known where it is installed."""
    school = import_module("posttrain.environments.school").TASKS
    names = [n for n in import_module("posttrain.environments.task").names() if not n.startswith("reasoning-gym/")]
    files = school | import_module("posttrain.environments.workshop").SKILLS
    told = {n: (files[n].__doc__ or "") if n in files else "" for n in names}
    return [{"name": n, "idea": t.strip().split("\n\n")[0].replace("\n", " ")} for n, t in told.items()]


def text() -> str:
    """The file's content: one part, claim or measurement per line, so that changes are read line by line."""
    made = build()
    lines = []
    for key, value in made.items():
        if isinstance(value, dict):
            inner = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in value.items())
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            inner = ",\n".join(f"  {json.dumps(v, ensure_ascii=False)}" for v in value)
            lines.append(f" {json.dumps(key)}: [\n{inner}\n ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    if not (PACKAGE.parent / "tests").is_dir():
        raise SystemExit("the index is made from tests and claims, which are not installed; clone the repository")
    made = text()
    INDEX.write_text(made)
    print(f"wrote {INDEX.relative_to(PACKAGE.parent)}: {len(json.loads(made)['parts'])} parts")


if __name__ == "__main__":
    main()
