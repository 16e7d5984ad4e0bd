"""An arm that runs a registered method or plan through the public API, as a user would, and counts what it spent.

    def arm(seed):
        with Bench(seed) as bench:
            model = bench.run("rm", method="reward-model", task="school_pairs", steps=30)
            run = bench.run("ppo", method="ppo", task="arithmetic", reward=str(model), steps=30)
            return bench.measured(run, task="arithmetic", problems=200)

`run_arm(seed, method="lite-ppo", task=..., steps=...)` is the case of a single run. `bench.once` is `bench.run` for what the arms of a seed
make alike. Each run is a folder that goes when the arm is done;
what stays is the curve of every step, and what all runs together spent (BUDGETS): by whoever is the policy, for roles besides it
(a reward model, a critic with its own weights) under their names, as in "reward_model/updates".
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import posttrain
from claims.machinery.once import key_of, made_once, shelf
from posttrain.core.config import Config, from_dict
from posttrain.core.loop import Loop
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group
from posttrain.environments.task import task as make_task
from posttrain.evals.accuracy import accuracy
from posttrain.runs.build import load_policy
from posttrain.runs.trained import Trained, load_trained

Further = Callable[[Policy, Environment], Mapping[str, float]]
CURVE = ("reward", "accuracy", "length", "kl", "tokens", "loss")
_DEVICE = [""]  # of all arms of this process


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Where the arms inside run: cuda, cpu, or "" for what the settings say."""
    before, _DEVICE[0] = _DEVICE[0], device
    try:
        yield
    finally:
        _DEVICE[0] = before


class Measured(dict[str, float]):
    """Metrics of an arm, with what it spent and the curves of its runs."""

    def __init__(self, metrics: Mapping[str, float], spent: Mapping[str, float], curves: Mapping[str, Any]) -> None:
        super().__init__(metrics)
        self.spent, self.curves = dict(spent), dict(curves)


class Tally:
    """A callback that counts, of every phase: different prompts, answers, their tokens, rows written by others, updates."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()
        self.seen: dict[str, set[str]] = {}
        self.updates: dict[tuple[str, str], int] = {}  # (phase, role's name for it) -> so far
        self.curves: dict[str, dict[str, list[float]]] = {}

    def on_rollouts(self, loop: Loop, step: int, groups: list[Group]) -> None:
        at = "" if loop.role == "policy" else f"{loop.role}/"
        made = [r for g in groups for r in g.rollouts]
        self.seen.setdefault(f"{at}prompts", set()).update(g.prompt.id for g in groups)
        if loop.method.rollout.card.data:
            self.counted[f"{at}written"] += len(made)
        else:
            self.counted[f"{at}samples"] += len(made)
            self.counted[f"{at}tokens"] += sum(len(r) for r in made)

    def on_step(self, loop: Loop, step: int, metrics: dict[str, float]) -> None:
        for role, learner in loop.learners.items():
            mine = loop.role if role == "policy" else role
            self.updates[loop.phase, "updates" if mine == "policy" else f"{mine}/updates"] = learner.updates
        curve = self.curves.setdefault(loop.phase, {})
        for name in CURVE:
            if name in metrics and math.isfinite(metrics[name]):
                curve.setdefault(name, []).append(float(f"{metrics[name]:.4g}"))
        curve.setdefault("updates", []).append(loop.learner.updates)

    def add(self, other: Tally) -> None:
        """What another counted, but for its curves."""
        self.counted += other.counted
        self.updates |= other.updates
        for key, ids in other.seen.items():
            self.seen.setdefault(key, set()).update(ids)

    def told(self) -> dict[str, Any]:
        seen = {key: sorted(ids) for key, ids in self.seen.items()}
        return {"counted": self.counted, "seen": seen, "updates": [[*at, n] for at, n in self.updates.items()]}

    @classmethod
    def from_told(cls, told: Mapping[str, Any]) -> Self:
        made = cls()
        made.counted += Counter(told["counted"])
        made.seen = {key: set(ids) for key, ids in told["seen"].items()}
        made.updates = {(phase, key): n for phase, key, n in told["updates"]}
        return made

    def spent(self) -> dict[str, float]:
        out = Counter({k: len(ids) for k, ids in self.seen.items()}) + self.counted
        for (_, key), n in self.updates.items():
            out[key] += n
        return {k: float(n) for k, n in sorted(out.items())}


class Bench:
    """A folder for the runs of one arm on one seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.tally, self.curves = seed, Tally(), dict[str, Any]()

    def __enter__(self) -> Self:
        self.room = tempfile.TemporaryDirectory(prefix="posttrain-check-")
        self.folder = Path(self.room.name)
        return self

    def __exit__(self, *error: object) -> None:
        self.room.cleanup()

    def rows(self, name: str, rows: Sequence[Mapping[str, Any]]) -> str:
        """Rows as a file, which methods and plans take alike."""
        path = self.folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def run(self, name: str, **settings: Any) -> Path:
        """`posttrain.run` with these settings, this arm's seed and one thread; returns the run's folder."""
        given: dict[str, Any] = {
            "seed": self.seed,
            "device": _DEVICE[0],
            "threads": 1,
            "eval_problems": 20,
            "log_rollouts": 0,
        } | settings
        tally = Tally()
        summary = posttrain.run(name=name, runs=self.folder, callbacks=(tally,), **given)
        if "judge_calls" in summary:  # questions that a plan asked its judge
            tally.counted["judge_calls"] += int(summary["judge_calls"])
        self._count(name, tally)
        return self.folder / name

    def once(self, name: str, **settings: Any) -> Path:
        """`run`, for what every arm of this seed makes alike: the first to come makes it, the others copy it with what it spent."""
        place = shelf()
        if place is None:
            return self.run(name, **settings)

        def make(there: Path) -> None:
            mine, self.tally = self.tally, Tally()
            curves, self.curves = self.curves, {}
            try:
                self.run(name, **settings).rename(there / "run")
                (there / "spent.json").write_text(json.dumps({"tally": self.tally.told(), "curves": self.curves}))
            finally:
                self.tally, self.curves = mine, curves

        same = {"name": name, "seed": self.seed, "device": _DEVICE[0], "settings": settings}
        found = made_once(place / key_of(same, self.folder), make)
        shutil.copytree(found / "run", self.folder / name)
        spent = json.loads((found / "spent.json").read_text())
        self.tally.add(Tally.from_told(spent["tally"]))
        self.curves |= spent["curves"]
        return self.folder / name

    def _count(self, name: str, tally: Tally) -> None:
        self.curves[name] = tally.curves
        tally.updates = {(f"{name}/{phase}", k): n for (phase, k), n in tally.updates.items()}
        self.tally.add(tally)

    def policy(self, run: Path | None) -> Any:
        """The policy that a run ended with; None: the embedded model as it comes."""
        if run is None:
            return load_policy(from_dict(Config, {"model": "pocket", "device": _DEVICE[0]}))
        return load_trained(Trained(run), load_policy, _DEVICE[0])[0]

    def measured(
        self,
        run: Path | None,
        task: str,
        problems: int = 200,
        further: Further | None = None,
        n: int = 1,
        **options: Any,
    ) -> Measured:
        """On held-out problems of the task: accuracy of sampled and of greedy answers, tokens per sampled answer, and what else is
        asked of the policy. options: level, think, sampling of the evaluation."""
        how = Sampling(**options.pop("sampling", {}))
        policy, env = self.policy(run), make_task(task, **options)
        drawn = accuracy(policy, env, problems, how, n)
        greedy = accuracy(policy, env, problems, Sampling(max_tokens=how.max_tokens, temperature=0.0))
        found = {"accuracy": drawn.accuracy, "greedy": greedy.accuracy, "length": drawn.tokens}
        return Measured(found | dict(further(policy, env) if further else {}), self.tally.spent(), self.curves)


def run_arm(seed: int, *, task: str, problems: int = 200, further: Further | None = None, **settings: Any) -> Measured:
    """One run of a registered method or plan (method=, model=, reward=, steps= and any other setting), and its measurement."""
    with Bench(seed) as bench:
        run = bench.run("run", task=task, **settings)
        same = {k: settings[k] for k in ("level", "think", "sampling") if k in settings}
        return bench.measured(run, task, problems, further, **same)
