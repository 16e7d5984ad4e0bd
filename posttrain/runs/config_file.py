"""A run as a file: `config.toml` in its folder repeats it, and `posttrain run --config file.toml` reads one.

method = "grpo"            a method, or a plan with its parameters: "rlhf-workflow(rounds=2)"
task = "arithmetic"        and any other setting
[sampling]
max_tokens = 64
[parts]
loss = "cispo(high=4)"     what the method does otherwise, as on the command line
"""

from __future__ import annotations

import ast
import dataclasses
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posttrain.core.config import Config, to_dict
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import COUNTS, FIELD_STAGES, Method, find_method
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling

NAMES = {field: "curriculum" if field == "prompts" else field for field in FIELD_STAGES}  # field of Method -> option
OWN = ("use", "from", "optimizer", "objects", "plan", "parts")  # keys besides the settings


@dataclass
class FileSettings:
    """What a file says: the settings, and what else a command line can."""

    settings: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    use: list[str] = field(default_factory=list)
    source: str = ""
    optimizer: bool = True


# ---- reading


def read_file(file: str | Path) -> FileSettings:
    """The settings of a TOML file; an unknown key is an error with the nearest one."""
    path = Path(file)
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"--config {file}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--config {file}: cannot be read ({error})") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UserError(f"--config {file}: not TOML: {error}") from None
    known = [f.name for f in dataclasses.fields(Config)]
    _known(file, "", found, [*known, *OWN])
    for table, inner in (
        ("sampling", [f.name for f in dataclasses.fields(Sampling)]),
        ("parts", [*NAMES.values(), *COUNTS]),
    ):
        _known(file, f"{table}.", _table(file, found, table), inner)
    if found.get("objects"):
        what = ", ".join(map(str, found["objects"]))
        raise UserError(f"--config {file}: this run was given objects in Python ({what}), which a file cannot repeat")
    settings = {k: v for k, v in found.items() if k in known}
    return FileSettings(
        settings, found.get("parts", {}), _table(file, found, "plan"), [str(x) for x in _list(file, found, "use")],
        str(found.get("from", "")), found.get("optimizer", True) is not False,
    )  # fmt: skip


def _known(file: str | Path, where: str, found: dict[str, Any], known: Iterable[str]) -> None:
    for key in found:
        if key not in known:
            raise unknown(f"setting in {file}", f"{where}{key}", [f"{where}{k}" for k in known])


def _table(file: str | Path, found: dict[str, Any], key: str) -> dict[str, Any]:
    value = found.get(key, {})
    if not isinstance(value, dict):
        raise UserError(f"--config {file}: {key} is {value!r:.40}; write it as a table: [{key}]")
    return value


def _list(file: str | Path, found: dict[str, Any], key: str) -> list[Any]:
    value = found.get(key, [])
    if not isinstance(value, list):
        raise UserError(f'--config {file}: {key} is {value!r:.40}; write it as a list: {key} = ["mine.py"]')
    return value


# ---- writing


def write_file(
    run: Any, config: Config, target: str, start: Any, parts: dict[str, Any] | None = None, objects: Iterable[str] = ()
) -> None:
    """config.toml in the run's folder; a setting that is None has no line, since TOML has no word for it."""
    plain = {k: v for k, v in to_dict(config).items() if k != "sampling" and v is not None} | {"method": target}
    extra = {"use": list(start.use), "objects": list(objects)}
    if start.source:
        plain.pop("model")
        extra |= {"from": start.source, "optimizer": start.optimizer}
    lines = [
        f"# what this run was asked to do; to repeat it: posttrain run --config {run.label}/config.toml --name another",
        *_lines(plain), *_lines({k: v for k, v in extra.items() if v != []}),
        "", "[sampling]", *_lines(to_dict(config.sampling)),
    ]  # fmt: skip
    if parts:
        lines += ["", "[parts]", *_lines(parts)]
    path, text = run.folder / "config.toml", "\n".join(lines) + "\n"
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def _lines(values: dict[str, Any]) -> list[str]:
    return [f"{key} = {toml(value)}" for key, value in values.items()]


def toml(value: Any) -> str:
    """A plain value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def method_changes(target: str, method: Method) -> tuple[str, dict[str, Any], list[str]]:
    """(the name of a method, what this one does otherwise, what no file can say): `but` as text."""
    base = next((m for name in (target, method.name) if (m := _method(name)) and m.name == method.name), None)
    if base is None:
        return target, {}, ["method"]
    name = target if _method(target) == base else method.name
    changed: dict[str, Any] = {k: getattr(method, k) for k in COUNTS if getattr(method, k) != getattr(base, k)}
    objects = ["method"] if method.others != base.others else []
    for stage, option in NAMES.items():
        value = getattr(method, stage)
        if value == getattr(base, stage):
            continue
        parts = value if isinstance(value, tuple) else (value,)
        changed[option] = " + ".join(map(str, parts)) or "none"
        objects += [option] if any(_found(str(p), stage) != p for p in parts) else []
    return name, changed, objects


def plan_call(plan: Any) -> str:
    """A plan with its parameters: `rlhf-workflow(rounds=2)`."""
    inside = ", ".join(f"{k}={v!r}" for k, v in plan.options.items())
    try:
        ast.parse(f"f({inside})", mode="eval")
    except SyntaxError:
        return str(plan.name)
    return f"{plan.name}({inside})" if inside else str(plan.name)


def _method(name: str) -> Method | None:
    try:
        return find_method(name)
    except UserError:
        return None


def _found(text: str, stage: str) -> Any:
    try:
        return find(text, *FIELD_STAGES[stage])
    except UserError:
        return None
