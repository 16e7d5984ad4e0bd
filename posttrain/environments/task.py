"""One name space for tasks: `task("arithmetic")`, `task("rg/chain_sum")`, `task("gsm8k")`, `task("my.jsonl")`.

    arithmetic, school/arithmetic         the school tasks
    reasoning-gym/chain_sum, rg/...       every data set of reasoning-gym
    documents                             facts in parts, questions that follow relations
    "gymnasium(id='FrozenLake-v1')"       environments of other packages, played in words (`adapters/`)
    "textworld(rooms=2, quest=3)", "verifiers(id='wordle')"
    "simulated_user(file='my.jsonl')"     conversations with a user who knows facts
    fact_search, workshop/fact_search     tasks with turns, tools and games (`workshop/`)
    gsm8k, data/gsm8k                     public data sets under the data folder
    school_pairs, school_lists, hh_rlhf   preferences, for methods that learn from them (`pair_task`)
    path/to/file.jsonl, path/to/folder    your own data
    org/name, "org/name(subset='main')"   a data set of the Hugging Face hub
    "my.jsonl(question='problem')"        any of them with options
    mine.py:Guess                         an environment of your own
    "arithmetic + counting"               several at once
A bare name is looked for in that order, so `countdown` is the school's and `data/countdown` the file's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, nearest, unknown
from posttrain.core.protocols import Environment
from posttrain.core.python_file import import_file
from posttrain.core.registry import parse, split_sum
from posttrain.environments import reasoning_gym as gym
from posttrain.environments.adapters.verifiers import adopt
from posttrain.environments.data import THINK, data
from posttrain.environments.documents import documents
from posttrain.environments.feedback import PreferenceFiles, feedback
from posttrain.environments.fields import NAMES, PREFERENCE_FIELDS
from posttrain.environments.hub import hub_splits, is_hub_id
from posttrain.environments.logs import LOG_NAMES, LogData, logs
from posttrain.environments.mixed import Mixed
from posttrain.environments.preferences import Reading
from posttrain.environments.presets import PREFERRED, QUESTIONS, preference_set, question_set
from posttrain.environments.questions import Layout
from posttrain.environments.rows import FORMATS, name_of
from posttrain.environments.school import TASKS, school
from posttrain.environments.simulated_user import simulated_user
from posttrain.environments.stream import stream

DEFAULT = "arithmetic"  # what is learned from when no task is named; of a method that learns from preferences:
DEFAULTS = {"pairs": "school_pairs", "lists": "school_lists", "labels": "school_labels"}
_GYM = ("reasoning-gym", "reasoning_gym", "rg")
ADAPTERS = ("gymnasium", "textworld", "verifiers")  # files of environments/adapters, each with a function of its name
# the files of environments/workshop, which are read when one of them is asked for
WORKSHOP = (
    "tool_calls", "fact_search", "table_sql", "one_liners", "treasure", "number_guess", "escape_room", "rubric_score", "better_answer",
    "second_try", "consultation",
)  # fmt: skip
_FIELDS = tuple(n for n in NAMES if n not in ("chosen", "rejected"))
_READING = tuple(f.name for f in fields(Reading))


def task(spec: str, **options: Any) -> Environment:
    """The Environment a name stands for. Options: level, think, seed for all; data is the folder of the public sets.

    A file also takes test, reward, suffix, skip_bad, stream, turns and a column for each field (question=..., answer=...); a
    data set of the hub its subset too; a reasoning-gym set takes size and its own settings. An option that a task does not
    have is an error. Without think a task asks for written thinking if that is its own way; a file never does.
    """
    if " + " in str(spec) and not Path(str(spec)).exists():
        return mixture(str(spec), options)
    spec, given = parse(str(spec)) if str(spec).strip().endswith(")") else (str(spec).strip(), {})
    folder, _, name = spec.partition("/")
    options = {k: v for k, v in options.items() if v is not None} | given
    file, _, made = spec.rpartition(":")
    if file.endswith(".py"):
        return of_yours(file, made, {k: v for k, v in given.items()})
    if spec.endswith(".py"):
        raise UserError(f"{spec} is a Python file; name the environment in it: --task {spec}:Name")
    if looks_like_file(spec):
        return _file(spec, options)
    if folder in _GYM and name:
        options.setdefault("think", False)
        return gym.reasoning_gym(_known(spec, name, gym.names()), **_renamed(options, spec, closed=None))
    if (folder == "school" and name) or spec.replace("-", "_") in TASKS:
        return school(_known(spec, name or spec, TASKS), **_renamed(options, spec, ("level", "think", "seed")))
    if (folder == "workshop" and name) or spec.replace("-", "_") in WORKSHOP:
        return in_workshop(
            _known(spec, name or spec, WORKSHOP), _renamed(options, spec, ("level", "seed", "allow_unsafe_code"))
        )
    if spec == "documents":
        return documents(**_renamed(options, spec, ("parts", "facts", "hops", "think", "seed")))
    if spec == "simulated_user":
        return simulated_user(**_renamed(options, spec, ("file", "user", "patience", "reveal")))
    if spec in ADAPTERS:
        return adapted(spec, options, given)
    if (folder == "data" and name) or spec.replace("-", "_") in QUESTIONS:
        taken = _renamed(options, spec, ("level", "think", "seed", "data"))
        if "data" in taken:
            taken["folder"] = taken.pop("data")
        return question_set(_known(spec, name or spec, QUESTIONS), **taken)
    if spec.replace("-", "_") in PREFERRED:
        raise UserError(f"{spec} holds preferences, which dpo and reward-model learn from; name a task with questions")
    if is_hub_id(spec) and not get_close_matches(folder, ("school", "workshop", "data", *_GYM[:2]), cutoff=0.85):
        return _file(spec, options)
    raise unknown("task", spec, names())


def of_yours(file: str, name: str, options: dict[str, Any]) -> Environment:
    """`mine.py:Guess` or `mine.py:Guess(top=20)`: an environment that somebody wrote, a class or a function that makes one; it may be one
    in the style of the package verifiers."""
    module = import_file(file, f"--task {file}:{name}")
    if name not in vars(module):
        made = [k for k, x in vars(module).items() if callable(x) and getattr(x, "__module__", "") == module.__name__]
        raise unknown(f"environment in {file}", name, made)
    try:
        env = getattr(module, name)(**options)
    except UserError:
        raise
    except TypeError as error:
        raise UserError(f"{file}:{name} cannot be made with {options or 'no options'}: {error}") from None
    except Exception as error:
        raise UserError(f"{file}:{name} failed when it was made: {type(error).__name__}: {error}") from error
    return adopt(env, name)


def adapted(name: str, options: dict[str, Any], given: dict[str, Any]) -> Environment:
    """An environment of another package; its options are its own, and those of files are refused."""
    for key in ("think", "data", "stream", *NAMES):
        if key in options and key not in given:
            raise UserError(f"the task {name} has no option {key!r}; it takes its own, in brackets: {name}(name=value)")
    try:
        made: Environment = getattr(import_module(f"posttrain.environments.adapters.{name}"), name)(**options)
    except TypeError as error:
        raise UserError(f"{name} cannot be made with {options or 'no options'}: {error}") from None
    return made


def in_workshop(skill: str, options: dict[str, Any]) -> Environment:
    """One of the workshop's tasks."""
    found: Environment = import_module("posttrain.environments.workshop").workshop(skill, **options)
    return found


def mixture(spec: str, options: dict[str, Any]) -> Mixed:
    """Several tasks as one, each with the same options."""
    names = [piece for piece in split_sum(spec) if piece]
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise UserError(f"a mixture is of two tasks or more, each named once, got {spec!r}")
    return Mixed({name: task(name, **options) for name in names})


def default_task(named: str, data: str) -> str:
    """The task of the settings; where that is the default and the method learns from preferences, those that ship."""
    return DEFAULTS.get(data, named) if named == DEFAULT else named


def pair_task(spec: str, data: str | Path | None = None, kind: str = "pairs", **options: Any) -> Environment:
    """Preferences by name (school_pairs, hh_rlhf), file or hub id, as an Environment whose prompts carry what a method of this kind
    learns from: pairs, lists or labels. A file of another kind is converted where that can be done."""
    name, own = parse(spec) if spec.strip().endswith(")") else (spec.strip(), {})
    options = {k: v for k, v in options.items() if v is not None} | own
    plain = name.removeprefix("data/").replace("-", "_")
    options = _answer_column(options)
    how = Reading(**{k: options.pop(k) for k in _READING if k in options})
    if not looks_like_file(name) and (plain in PREFERRED or not is_hub_id(name)):
        _renamed(options, name, ())
        if plain not in PREFERRED:
            known = ", ".join(PREFERRED)
            raise UserError(f"{name!r} is no set of preference {kind}; use {known}, or a file with chosen and rejected")
        return feedback(replace(preference_set(plain, data), how=how), kind)
    taken = _renamed(options, name, ("test", "seed", "skip_bad", "stream", *_hub(name), *PREFERENCE_FIELDS, *_READING))
    layout = Layout(fields={n: str(taken.pop(n)) for n in PREFERENCE_FIELDS if n in taken})
    source = _source(name, taken)
    if taken.pop("stream", False):
        return stream(source, layout=layout, want=kind, how=how, **taken)
    return feedback(PreferenceFiles(source, layout=layout, name=name_of(name), how=how, **taken), kind)


def _answer_column(options: dict[str, Any]) -> dict[str, Any]:
    """--answer names the column of an answer that is good or bad."""
    return {"response" if k == "answer" and "response" not in options else k: v for k, v in options.items()}


def of_rows(rows: Any, kind: str = "", think: bool = False, **columns: str) -> Environment:
    """Rows from Python (a list of dicts, or a dict of those by split) as what a method of this kind of data learns from."""
    if kind in DEFAULTS:
        columns = _renamed(_answer_column(columns), "rows", tuple(PREFERENCE_FIELDS))
        return feedback(PreferenceFiles(rows, layout=Layout(fields=columns), name="rows"), kind)
    if kind == "logs":
        return logs(rows, columns)
    _renamed(columns, "rows", _FIELDS)
    return data(rows, layout=Layout(fields=columns, suffix=THINK if think else ""))


def log_task(spec: str, **options: Any) -> LogData:
    """Answers that were given before: a file of them, or the folder of a run that stored its own."""
    name, own = parse(spec) if spec.strip().endswith(")") else (spec.strip(), {})
    options = {k: v for k, v in options.items() if v is not None} | own
    taken = _renamed(options, name, ("reward", "skip_bad", *(k for k in LOG_NAMES if k != "reward"), "earned"))
    if not looks_like_file(name):
        told = "name a file of logged answers (--task log.jsonl) or the folder of a run (--task runs/NAME)"
        raise UserError(f"{name!r} is no log; {told}")
    columns = {
        "reward" if k == "earned" else k: str(taken.pop(k))
        for k in (*LOG_NAMES, "earned")
        if k in taken and k != "reward"
    }
    return logs(name, columns, **taken)


def looks_like_file(spec: str) -> bool:
    """A path: it exists on disk, or it ends as data files do."""
    return any(spec.endswith((e, f"{e}.gz")) for e in FORMATS) or (("/" in spec or "." in spec) and Path(spec).exists())


def names() -> list[str]:
    """Every task there is a name for; those of reasoning-gym only where it is installed."""
    try:
        rg = [f"reasoning-gym/{n}" for n in gym.names()]
    except UserError:
        rg = []
    data = [n if n not in TASKS else f"data/{n}" for n in QUESTIONS]
    return [*TASKS, "documents", "simulated_user", *WORKSHOP, *ADAPTERS, *data, *rg]


def _known(spec: str, name: str, known: Any) -> str:
    plain = name.replace("-", "_")
    if plain not in known:
        raise unknown("task", spec, [spec[: len(spec) - len(name)] + k for k in known])
    return plain


def _renamed(options: dict[str, Any], spec: str, closed: tuple[str, ...] | None) -> dict[str, Any]:
    """The options, if the task has them; closed=None leaves that question to the task itself."""
    if closed is None:
        if "level" in options:
            raise UserError(f"{spec} has no levels; use its own settings, like max_terms=4")
        return options
    for key in options:
        if key not in closed:
            close = nearest(key, closed)
            hint = f"did you mean {close!r}?" if close else f"it has: {', '.join(closed)}"
            raise UserError(f"the task {spec} has no option {key!r}; {hint}")
    return dict(options)


def _hub(spec: str) -> tuple[str, ...]:
    return () if looks_like_file(spec) else ("subset",)


def _source(spec: str, taken: dict[str, Any]) -> Any:
    """The file or folder itself; of a hub id its files by split."""
    return spec if looks_like_file(spec) else hub_splits(spec, str(taken.pop("subset", "")))


def _file(spec: str, options: dict[str, Any]) -> Environment:
    closed = ("test", "reward", "suffix", "think", "seed", "skip_bad", "stream", "turns", *_hub(spec), *_FIELDS)
    taken = _renamed(options, spec, closed)
    fields = {name: str(taken.pop(name)) for name in _FIELDS if name in taken}
    suffix = str(taken.pop("suffix", "")) + (THINK if taken.pop("think", False) else "")
    turns = str(taken.pop("turns", "all"))
    if turns not in ("all", "last"):
        raise UserError(
            f"turns is {turns!r}; of a conversation 'all' turns of the assistant are imitated, or the 'last'"
        )
    layout = Layout(fields=fields, suffix=suffix, reward=taken.pop("reward", ""), turns=turns)
    source = _source(spec, taken)
    if taken.pop("stream", False):
        return stream(source, layout=layout, **taken)
    return data(source, layout=layout, name=name_of(spec), **taken)
