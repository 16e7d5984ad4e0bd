"""The page's JSON API: an address, the parameters it takes, what it answers with. Reading only; docs/page.md lists it for people.

Every parameter is checked here; a mistake is a UserError, which the server answers with 400 and the sentence.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from posttrain.core.errors import UserError, nearest, unknown
from posttrain.page import answers, episode, facts, field, rollouts, series, tree
from posttrain.page import sheets as saved
from posttrain.page.folder import Folder
from posttrain.page.rollouts import Filter
from posttrain.runs.reader import Reader
from posttrain.runs.unscored import unscored

Params = Mapping[str, str]
_TEXT = 1000  # characters of a parameter
_FILTER = {f.name: str(f.type) for f in fields(Filter)}


def runs(folder: Folder, params: Params) -> Any:
    return {"runs": [facts.listed(run) for run in folder.runs()]}


def run(folder: Folder, params: Params) -> Any:
    found = folder.summary(params["run"])
    with folder.open(found.name) as reader:
        return facts.about(reader, found)


def warnings(folder: Folder, params: Params) -> Any:
    """What the monitors have found in a run, for a list of runs."""
    with folder.open(params["run"]) as reader:
        return {"warnings": facts.warned(reader), "unscored": unscored(reader, [p.name for p in series.phases(reader)])}


def metrics(folder: Folder, params: Params) -> Any:
    """Curves of the named metrics (all without `names`)."""
    with folder.open(params["run"]) as reader:
        wanted = [n for n in params.get("names", "").split(",") if n] or series.names(reader)
        points, after = whole(params, "points", series.POINTS), whole(params, "after", 0)
        return series.curves(reader, wanted, points, params.get("x", "step"), after)


def answer_page(folder: Folder, params: Params) -> Any:
    wanted = Filter(**{k: typed(k, v) for k, v in params.items() if k in _FILTER and v != ""})
    at = params.get("at")
    with folder.open(params["run"]) as reader:
        phase(reader, params)
        return rollouts.page(reader, wanted, whole(params, "limit", 50), place(at) if at else None)


def scatter(folder: Folder, params: Params) -> Any:
    with folder.open(params["run"]) as reader:
        return rollouts.scatter(reader, phase(reader, params))


def group(folder: Folder, params: Params) -> Any:
    with folder.open(params["run"]) as reader:
        return answers.group(reader, phase(reader, params), whole(params, "step"), whole(params, "group"))


def tokens(folder: Folder, params: Params) -> Any:
    with folder.open(params["run"]) as reader:
        key = (whole(params, "step"), whole(params, "group"), whole(params, "sample"))
        return answers.tokens(reader, phase(reader, params), *key)


def forks(folder: Folder, params: Params) -> Any:
    with folder.open(params["run"]) as reader:
        return tree.tree(reader, phase(reader, params), whole(params, "step"), whole(params, "group"))


def played(folder: Folder, params: Params) -> Any:
    with folder.open(params["run"]) as reader:
        key = (whole(params, "step"), whole(params, "group"), whole(params, "sample"))
        return episode.episode(reader, phase(reader, params), *key)


def systems(folder: Folder, params: Params) -> Any:
    return {"systems": field.systems()}


def system(folder: Folder, params: Params) -> Any:
    return field.system(params["name"])


def sheets(folder: Folder, params: Params) -> Any:
    """Audits of rewards and sheets of data that were saved beside the runs."""
    return {"sheets": saved.sheets(folder)}


_ONE = {"run", "phase", "step", "group"}
# address -> (what answers, parameters it needs, those it may have)
ROUTES: dict[str, tuple[Callable[[Folder, Params], Any], set[str], set[str]]] = {
    "runs": (runs, set(), set()),
    "run": (run, {"run"}, set()),
    "warnings": (warnings, {"run"}, set()),
    "metrics": (metrics, {"run"}, {"names", "points", "x", "after"}),
    "rollouts": (answer_page, {"run", "phase"}, {*_FILTER, "limit", "at"}),
    "scatter": (scatter, {"run", "phase"}, set()),
    "group": (group, _ONE, set()),
    "tokens": (tokens, {*_ONE, "sample"}, set()),
    "tree": (forks, _ONE, set()),
    "episode": (played, {*_ONE, "sample"}, set()),
    "sheets": (sheets, set(), set()),
    "systems": (systems, set(), set()),
    "system": (system, {"name"}, set()),
}


def answer(folder: Folder, address: str, params: Params) -> Any:
    """What an address answers with, as JSON takes it."""
    if address not in ROUTES:
        raise unknown("address", address[:_TEXT], ROUTES)
    function, needed, allowed = ROUTES[address]
    for name, value in params.items():
        if name not in needed | allowed:
            close = nearest(name, needed | allowed)
            raise UserError(
                f"{address} takes no {name[:60]!r}; {f'did you mean {close!r}?' if close else 'see docs/page.md'}"
            )
        if len(value) > _TEXT:
            raise UserError(f"{name} has {len(value)} characters; at most {_TEXT} are read")
    if missing := sorted(needed - set(params)):
        raise UserError(f"{address} needs {' and '.join(missing)}")
    return function(folder, params)


def phase(reader: Reader, params: Params) -> str:
    """A phase that the run has."""
    there = [name for name in reader.phases() if isinstance(name, str)]
    if params["phase"] not in there:
        raise unknown(f"phase of {params['run']}", params["phase"], there)
    return params["phase"]


def whole(params: Params, name: str, default: int | None = None) -> int:
    text = params.get(name, "")
    if not text and default is not None:
        return default
    if not re.fullmatch(r"-?[0-9]{1,17}", text):
        raise UserError(f"{name} is {text[:60]!r}; it must be a whole number")
    return int(text)


def typed(name: str, text: str) -> Any:
    """A filter's value by the kind of its field."""
    kind = _FILTER[name]
    if kind.startswith("int"):
        return whole({name: text}, name)
    if kind == "bool":
        return text == "1"
    if not kind.startswith("float"):
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"{name} is {text[:60]!r}; it must be a number")
    return value


def place(text: str) -> list[Any]:
    """Where a page begins: the `next` of the page before."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(x, int | float) and not isinstance(x, bool) for x in found):
        raise UserError(f"at is {text[:60]!r}; it must be the `next` of the page before, as JSON")
    if any(isinstance(x, int) and abs(x) >= 1 << 63 for x in found):
        raise UserError(f"at is {text[:60]!r}; its numbers are too large")
    return found
