"""Scorers from what is typed: `"numeric + 0.2*mine.py:polite + 0.5*runs/my-rm"`; empty: the task grades itself.

numeric, length(target=9)                 a registered rule
mine.py:polite                            a function of the user's (rewards/runtime/conventions.py)
runs/NAME, path/to/folder                 a reward model: one that a run trained, or a Hugging Face folder
win_rate(judge='mine.py:prefer')          a registered scorer; judges, rewards and scorers in it are named likewise
judge(url='http://host/v1', rubric='...') a model behind an OpenAI-compatible API, as the judge
model_judge(folder='path/to/folder')      a language model in a folder, as the judge
"""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError, nearest
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part, find, parse, split_sum
from posttrain.core.typed import checked, parameter_hints, shown
from posttrain.rewards.rules.task import task
from posttrain.rewards.runtime.file_function import FileFunction
from posttrain.rewards.runtime.file_process import Process
from posttrain.rewards.runtime.file_reward import FileReward, member
from posttrain.rewards.runtime.outcome import Failure
from posttrain.rewards.runtime.score import RewardSum, best_effort, is_scorer, say_once
from posttrain.rewards.runtime.scorer import BaseScorer, texts_of
from posttrain.rewards.runtime.timeout_pool import run_items
from posttrain.rewards.scorers.judging import FunctionJudge, Judging, ScoreJudge, is_judge

_NAME = r"[A-Za-z][\w.-]*(?:\(.*\))?|[^*]+\.py:\w+|'[^']+'|[^*()]+/[^*()]*"
_SUMMAND = re.compile(rf"^(?:(?P<weight>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*\*\s*)?(?P<name>{_NAME})$")
_LITERAL = (str, int, float, bool)


@dataclass(frozen=True)
class Build:
    """What a scorer is built for: the task, seconds per call, the device of networks."""

    env: Environment
    timeout: float = 10.0
    device: str = ""


def build_scorer(spec: str, env: Environment, timeout: float = 10.0, device: str = "") -> Any:
    """The scorer a spec stands for."""
    if not spec:
        return task_scorer(env, timeout)
    how = Build(env, timeout, device)
    typed = summands(spec)
    rewards = apart([(*_named(name, how), weight) for weight, name in typed], [name for _, name in typed])
    if len(rewards) == 1 and rewards[0][2] == 1.0 and is_scorer(rewards[0][1]):
        return rewards[0][1]
    return RewardSum(rewards, timeout)


def apart(rewards: list[tuple[str, Any, float]], typed: list[str]) -> list[tuple[str, Any, float]]:
    """The rewards of a sum; of two with one short name (a/rm + b/rm) each is called as it was typed."""
    names = Counter(name for name, _, _ in rewards)
    return [(t.strip("'") if names[n] > 1 else n, fn, w) for (n, fn, w), t in zip(rewards, typed, strict=True)]


def task_scorer(env: Environment, timeout: float = 10.0) -> RewardSum:
    """The task's own grade, with a time limit; the same in training and in evaluation."""
    return RewardSum([("task", task.but(environment=env), 1.0)], timeout)


def summands(spec: str) -> list[tuple[float, str]]:
    """(weight, name) of each reward in a sum."""
    out = []
    for piece in split_sum(spec):
        match = _SUMMAND.match(piece)
        if not match:
            told = "write it like 'numeric + 0.2*format', 'mine.py:function' or 'runs/NAME'"
            raise UserError(f"cannot read {shown(piece)} in the reward {shown(spec)}; {told}")
        weight = float(match["weight"] or 1.0)
        out.append((checked(f"the weight of {match['name'][:60]}", weight, float), match["name"]))
    return out


def named(name: str, env: Environment) -> tuple[str, Any]:
    """(what a rollout keeps its number under, the reward): a rule, a function, a reward model or a scorer."""
    return _named(name, Build(env))


def _named(name: str, how: Build) -> tuple[str, Any]:
    file, _, function = name.rpartition(":")
    if file.endswith(".py") and not name.endswith(")"):
        return function, file_reward(file, function)
    if name == "task":
        return name, task.but(environment=how.env)
    if is_folder(name):
        from posttrain.rewards.scorers.learned import LearnedReward

        made = LearnedReward(name.strip("'"), how.device)
        return made.name, made
    word, params = parse(name)
    part = find(word, "reward", "scorer")
    if part.card.stage == "reward":
        return name, part.but(**params)
    scorer = scorer_from(part, params, how)
    return getattr(scorer, "called", name), scorer


def is_folder(name: str) -> bool:
    """A path: quoted, with a slash outside parentheses, or a folder that is here and has no parameters."""
    return (
        name.startswith("'")
        or "/" in name.partition("(")[0]
        or ("(" not in name and Path(name, "config.json").is_file())
    )


def scorer_from(part: Part, params: dict[str, Any], how: Build) -> BaseScorer:
    """A registered scorer from literals; one that needs a live network says that only a plan can build it."""
    kinds: dict[str, str] = dict(part.fn.by_name)  # type: ignore[attr-defined]
    wanted = inspect.signature(part.fn).parameters
    closed = [n for n, p in wanted.items() if p.default is p.empty and n not in kinds]
    if closed:
        raise UserError(
            f"the scorer {part.name} is built around live parts of a run ({', '.join(closed)}), so a plan builds it and "
            f"--reward cannot; read it with: posttrain show scorer/{part.name}"
        )
    known = [n for n, p in wanted.items() if n in kinds or isinstance(p.default, _LITERAL)]
    for name in params:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close!r}?" if close else f"it takes: {', '.join(known)}"
            raise UserError(f"the scorer {part.name} has no parameter {name!r}; {hint}")
    if missing := [n for n in kinds if n not in params]:
        like = ", ".join(f"{n}={_EXAMPLE[kinds[n]]!r}" for n in missing)
        raise UserError(f"the scorer {part.name} needs {' and '.join(missing)}; write {part.name}({like})")
    hints = parameter_hints(part.fn)
    plain = {n: checked(f"{n} of {part.name}", x, hints.get(n, Any)) for n, x in params.items() if n not in kinds}
    made: BaseScorer = part.fn(**{n: _READ[kinds[n]](x, how) if n in kinds else plain[n] for n, x in params.items()})
    return made


def _scorer(spec: str, how: Build) -> Any:
    return build_scorer(str(spec), how.env, how.timeout, how.device)


def _texts(spec: str, how: Build) -> Any:
    """A reward as a function of (prompts, texts)."""
    made = _scorer(spec, how)
    return lambda prompts, texts: texts_of(made, prompts, texts)


def judge_of(spec: str, how: Build, k: float = 1.0) -> Judging:
    """The judge that a spec stands for: `mine.py:prefer` of (prompt, a, b) or (prompt, texts), `judge(url=...)`, `model_judge(folder=...)`,
    an oracle; any other reward r gives its numbers as points and judges pairs by sigmoid(k (r_a - r_b))."""
    fn = judge_in_file(str(spec), how.timeout)
    if fn is not None:
        return fn if isinstance(fn, Judging) else FunctionJudge(fn)
    made = build_scorer(str(spec), how.env, how.timeout, how.device)
    return made if isinstance(made, Judging) else ScoreJudge(made, k)


_READ: dict[str, Callable[[str, Build], Any]] = {
    "judge": judge_of,
    "scorer": _scorer,
    "texts": _texts,
    "folder": lambda text, how: str(text),
}
_EXAMPLE = {"judge": "mine.py:prefer", "scorer": "numeric", "texts": "numeric", "folder": "runs/NAME"}


def names_judge(spec: str) -> bool:
    """Whether a judge is typed, FILE.py:FUNCTION of (prompt, a, b) or (prompt, texts): it is no reward of a single answer."""
    return judge_in_file(spec) is not None


def judge_in_file(spec: str, timeout: float = 10.0) -> Any:
    """The judge of `FILE.py:FUNCTION`; None where that is something else."""
    file, _, name = spec.strip().rpartition(":")
    if not file.endswith(".py") or not name.isidentifier() or "+" in file or "(" in file:
        return None
    found = function_of(file, name, timeout)
    return found if is_judge(found) else None


def function_of(file: str, name: str, timeout: float = 10.0) -> Any:
    """A function of the user's that is no reward (a judge, a critic), in a process of its own with a time limit."""
    if (found := file_function(file, name, timeout)) is not None:
        return found
    found = member(file, name)
    return timed(found, timeout) if callable(found) and not isinstance(found, type) else found


def file_function(file: str, name: str, timeout: float) -> FileFunction | None:
    """The function in a process of its own; None where it is no function, or does not say what it takes."""
    process = Process(file, name, plain=True)
    if process.takes is not None:
        return FileFunction(process, timeout, lambda fn: timed(fn, timeout))
    process.kill()
    return None


def timed(fn: Callable[..., Any], timeout: float) -> Callable[..., Any]:
    """The function, called in a thread that is left behind when it is late; what it raised, or that it was late, is raised here."""

    @functools.wraps(fn)
    def call(*args: Any, **more: Any) -> Any:
        say_once(best_effort(getattr(fn, "__name__", "of yours"), "judge or critic"))
        (found,) = run_items(lambda _: fn(*args, **more), 1, timeout, 1)
        if isinstance(found, Failure):
            told = f"{found.error} {found.where}".strip()
            raise TimeoutError(told) if found.kind == "late" else ValueError(told)
        return found

    return call


def file_reward(file: str, name: str) -> Any:
    """A reward of the user's, in a process of its own; a scorer sees rollouts, which stay in this one."""
    made = FileReward(file, name)
    if not made.process.is_scorer:
        return made
    made.process.kill()
    say_once(
        f"{name} of {file} is a scorer, which sees whole rollouts: it runs in the training process, without a time-out"
    )
    return member(file, name)
