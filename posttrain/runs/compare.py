"""Compare methods: same prompts, same budget, several seeds, Student t intervals, a plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from posttrain.core.config import Config, from_dict, to_dict
from posttrain.core.errors import UserError
from posttrain.core.json_file import strict
from posttrain.core.method import Method, find_method
from posttrain.core.protocols import Environment
from posttrain.core.registry import fold, parse, parts
from posttrain.environments.tooled import Tooled
from posttrain.evals.accuracy import accuracy, mean_reward
from posttrain.evals.intervals import PAIRED_LEVEL, differences, paired, student
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.runs.in_memory import InMemoryRun, one_thread
from posttrain.runs.users import users
from posttrain.train import train

# rollouts that are read and not made, and what they are
ELSEWHERE = {
    "pairs": "written pairs",
    "lists": "ranked lists",
    "labels": "good and bad answers",
    "logs": "logged answers",
    "steps": "labelled steps",
}
OTHERS = {"dpo": "online-dpo, which makes its own"}


@dataclass(frozen=True)
class Row:
    """One method: accuracy after training by seed, its interval, and how far it is from the first method's."""

    method: str
    accuracy: list[float]
    mean: float
    low: float
    high: float
    ahead: float  # of the first method, paired by seed
    ahead_low: float
    ahead_high: float
    curve: list[float]  # mean reward at each step over seeds


@dataclass(frozen=True)
class Comparison:
    """The result, as text (`print`) or plain values (`to_dict`)."""

    task: str
    model: str
    steps: int
    seeds: int
    before: float
    rows: list[Row]
    score: str = "accuracy"  # or "reward", of episodes

    def to_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = strict(asdict(self))
        return out

    def __str__(self) -> str:
        first, x = self.rows[0].method, shown(self.score)
        lines = [
            f"{self.task}, {self.model}, {self.steps} steps, {self.seeds} seeds; held-out {self.score} before: {x(self.before)}",
            f"{'method':28} {'after':>7}   95% interval      ahead of {first} ({PAIRED_LEVEL:.1%} interval, paired by seed)",
        ]
        for r in self.rows:
            span = f"[{x(r.ahead_low, '+')}, {x(r.ahead_high, '+')}]" if r.ahead_low == r.ahead_low else "on every seed"
            ahead = "" if r is self.rows[0] else f"{x(r.ahead, '+')} {span}"
            lines.append(f"{r.method:28} {x(r.mean):>7}   [{x(r.low)}, {x(r.high)}]   {ahead}".rstrip())
        clear = [r.method for r in self.rows[1:] if r.ahead_low > 0 or r.ahead_high < 0]
        lines.append(
            f"clearly different from {first}: {', '.join(clear)}"
            if clear
            else f"no clear difference from {first} at this size"
        )
        return "\n".join(lines)


def shown(score: str) -> Callable[..., str]:
    """How a score is written: accuracies as percentages, rewards as they are."""
    return lambda x, sign="": format(x, f"{sign}.1%" if score == "accuracy" else f"{sign}.3f")


def compare(
    methods: Sequence[str], task: str = "word_problems", seeds: int = 5, steps: int = 40,
    config: Config | None = None, picture: str | Path | None = None, tell: Callable[[str], None] | None = None,
) -> Comparison:  # fmt: skip
    """Train each method from the same start on the same prompts with each seed, and compare held-out accuracy; where the task has turns,
    the mean reward of held-out episodes."""
    from posttrain.environments.task import task as find_task
    from posttrain.runs.tool_files import with_named_tools

    if len(methods) < 2 or len(set(methods)) < len(methods):
        raise UserError(f"a comparison needs at least two different methods, got {', '.join(methods) or 'none'}")
    config = replace(config or Config(), task=task, steps=steps)
    made: dict[str, Method] = {name: comparable(name, config.num_generations) for name in methods}
    settings = {name: own_settings(method, config) for name, method in made.items()}
    env = find_task(task, level=config.level, think=config.think, data=config.data or None)
    if config.tools:
        env = with_named_tools(env, config.tools)
    if not env.graded and (not env.opens or isinstance(env, Tooled)):
        raise UserError(f"{task} has no gold answers, so accuracy cannot be compared on it; use another --task")
    score = "reward" if env.opens else "accuracy"
    before, found, curves = 0.0, {}, {}
    with one_thread():
        for name, method in made.items():
            outcomes = []
            for seed in range(seeds):
                before, after, curve = _train(method, env, replace(settings[name], seed=seed))
                outcomes.append((after, curve))
                if tell:
                    tell(f"{name}, seed {seed}: {shown(score)(before)} -> {shown(score)(after)}")
            found[name] = [after for after, _ in outcomes]
            curves[name] = [sum(step) / seeds for step in zip(*(c for _, c in outcomes), strict=True)]
    rows = [_row(name, found[name], found[methods[0]], curves[name]) for name in methods]
    result = Comparison(task, config.model, steps, seeds, before, rows, score)
    if picture:
        draw(result, picture)
    return result


def comparable(name: str, n: int | None = None) -> Method:
    """The method of that name, with n answers per prompt; an error for a method whose result is not an accuracy on a task."""
    word = parse(name)[0]
    if fold(word) in {p.name for p in parts("plan")} - {p.name for p in parts("method")}:
        raise UserError(f"{word} is a plan of several phases, and compare is for methods; run it: posttrain run {word}")
    method = find_method(name)
    if method.scores:
        raise UserError(
            f"{word} trains a reward model, which has no accuracy on a task; compare methods that train a policy"
        )
    if method.rollout.card.data in ELSEWHERE:
        other = OTHERS.get(method.name, "a method that samples its own")
        raise UserError(
            f"{word} learns from {ELSEWHERE[method.rollout.card.data]}, which a task does not have; use {other}"
        )
    if n is not None and "n" in method.rollout.defaults():
        method = method.but(rollout=method.rollout.but(n=n))
    return method


def own_settings(method: Method, config: Config) -> Config:
    """The settings with the method's own where they are as they would be by themselves; what it does not read is an error."""
    from posttrain.runs.refuse import refuse

    plain, asked = to_dict(Config()), to_dict(config)
    given = {k: v for k, v in asked.items() if v != plain[k] and k != "sampling"}
    given["sampling"] = {k: v for k, v in asked["sampling"].items() if v != plain["sampling"][k]}
    found: Config = from_dict(Config, method.own(given))
    refuse(found, method)
    return replace(found, keep_best=False)


def _train(method: Method, env: Environment, config: Config) -> tuple[float, float, list[float]]:
    """The held-out score before and after, and the mean reward of each step: the loop of a run, kept in memory."""
    from posttrain.runs.build import Pieces, at_test, build_loop, load_policy, measure, scorer_of

    policy, run = load_policy(config), InMemoryRun()
    scorer, others = scorer_of(config, method, env), users(config, env, "runs")

    def held_out() -> float:
        many, how, rollout = config.eval_problems, config.sampling, at_test(method, env)
        if isinstance(env, Tooled):  # the episode has graded the answer
            return mean_reward(policy, env, many, how, Prescored(), rollout).accuracy
        if env.opens:
            return measure(policy, config, method, env, scorer, others).accuracy
        return accuracy(policy, env, many, how, rollout=rollout).accuracy

    before = held_out()
    trained_in = env.unpaid() if isinstance(env, Tooled) and config.reward else env
    train(build_loop(config, method, policy, Pieces(trained_in, scorer, run, others=others)))
    after = held_out()
    return before, after, [row["reward"] for row in run.rows]


def _row(name: str, values: list[float], first: list[float], curve: list[float]) -> Row:
    mean = sum(values) / len(values)
    low, high = student(values)
    gaps = differences(values, first)
    ahead_low, ahead_high = paired(gaps) if values is not first else (0.0, 0.0)
    return Row(name, values, mean, low, high, sum(gaps) / len(gaps), ahead_low, ahead_high, curve)


def draw(result: Comparison, path: str | Path) -> Path:
    """Mean reward over seeds at each step, one line per method."""
    from posttrain.evals.pictures import frontier

    series = {r.method: [(float(i), y) for i, y in enumerate(r.curve)] for r in result.rows}
    title = f"{result.task}: {result.seeds} seeds"
    return frontier(series, "step", "mean training reward", title, path)
