"""`--track tensorboard,wandb,mlflow,trackio`: the metrics of a run in other people's dashboards, as it goes.

A tracker is a callback of the loop. The run's own database stays the record: a tracker that fails is told once and left out, and the
run goes on. A resumed run goes on in the same tracked run (its id is kept in runs/<name>/tracked/), and steps that are done again are
sent again with the same values.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from posttrain.core.errors import UserError, unknown

PROJECT = "posttrain"
_ODD = re.compile(r"[^\w\-./ ]")  # characters that some tracker does not take in a name


class Tracker(Protocol):
    """One dashboard: opened at the first step that is sent."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], first: int) -> None: ...
    def log(self, metrics: Mapping[str, float], step: int) -> None: ...
    def close(self) -> None: ...


class TensorBoard:
    """Event files under runs/<name>/tracked/tensorboard: tensorboard --logdir runs."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        where = folder / "tensorboard"
        again = first if where.exists() else None  # steps from there on are written again
        self.writer = SummaryWriter(str(where), purge_step=again)
        if again is None:
            self.writer.add_text("settings", f"```\n{json.dumps(settings, indent=2)}\n```", 0)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class WandB:
    """Weights & Biases; without a key (WANDB_API_KEY, or `wandb login`) offline, to be uploaded with `wandb sync`."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], first: int) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE") or ("online" if _wandb_key() else "offline")
        if mode == "offline":
            print(f"wandb: tracked offline; upload with: wandb sync {folder}/wandb/offline-run-*", file=sys.stderr)
        known = _kept(folder, "wandb", lambda: uuid.uuid4().hex[:12])
        quiet = wandb.Settings(silent=True, console="off")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT), name=name, id=known, dir=str(folder), config=dict(settings),
            resume="allow", mode=mode, settings=quiet,
        )  # fmt: skip

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def close(self) -> None:
        self.run.finish()


class MLflow:
    """MLflow at MLFLOW_TRACKING_URI; without one a local database in runs/<name>/tracked/mlflow.db."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], first: int) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve()}/mlflow.db"
        self.client = MlflowClient(tracking_uri=uri)
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self.client.get_experiment_by_name(title)
        where = None if os.environ.get("MLFLOW_TRACKING_URI") else (folder.resolve() / "mlflow").as_uri()
        experiment = found.experiment_id if found else self.client.create_experiment(title, artifact_location=where)
        self.id = _kept(folder, "mlflow", lambda: self._new(experiment, name, settings))
        self.client.update_run(self.id, status="RUNNING")

    def _new(self, experiment: str, name: str, settings: Mapping[str, Any]) -> str:
        id: str = self.client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            self.client.log_param(id, _ODD.sub("_", key), str(value)[:500])
        return id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(k, v, now, step) for k, v in metrics.items()])

    def close(self) -> None:
        self.client.set_terminated(self.id)


class Trackio:
    """Trackio, on this machine: trackio show --project posttrain."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], first: int) -> None:
        import trackio

        self.trackio = trackio
        known = _kept(folder, "trackio", lambda: f"{name}-{uuid.uuid4().hex[:6]}")
        trackio.init(project=PROJECT, name=known, config=dict(settings), resume="allow")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.trackio.log(dict(metrics), step=step)

    def close(self) -> None:
        self.trackio.finish()


# name -> (the tracker, the module it needs, what to install)
TRACKERS: dict[str, tuple[type[Tracker], str, str]] = {
    "tensorboard": (TensorBoard, "tensorboard", 'pip install "posttrain[tensorboard]"'),
    "wandb": (WandB, "wandb", 'pip install "posttrain[wandb]"'),
    "mlflow": (MLflow, "mlflow", 'pip install "posttrain[mlflow]"'),
    "trackio": (Trackio, "trackio", 'pip install "posttrain[trackio]"'),
}


class Track:
    """The callback: every step's figures to every tracker that was named. Close it when the run has ended."""

    def __init__(self, names: str) -> None:
        self.names = [name.strip().lower() for name in names.split(",") if name.strip()]
        for name in self.names:
            if name not in TRACKERS:
                raise unknown("tracker", name, TRACKERS)
            _, module, install = TRACKERS[name]
            found = find_spec(module)
            if found is None or found.origin is None:  # a folder of that name is no package
                raise UserError(f"--track {name} needs the package {module}, which is not installed: {install}")
        self.open: dict[str, Tracker] = {}
        self.lost: set[str] = set()
        self.phase, self.offset, self.last = "", 0, 0

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        if loop.phase != self.phase:
            self.phase, self.offset = loop.phase, steps_before(loop)
        head = "" if loop.phase == "train" else f"{loop.phase}/"
        sent = {_ODD.sub("_", f"{head}{k}"): float(v) for k, v in metrics.items() if math.isfinite(v)}
        self.last = self.offset + step
        self._each(loop, lambda tracker: tracker.log(sent, self.last))

    def on_end(self, loop: Any, before: Any, after: Any, summary: dict[str, Any]) -> None:
        numbers = {
            f"summary/{k}": float(v) for k, v in summary.items() if isinstance(v, int | float) and math.isfinite(v)
        }
        if self.open:
            self._each(loop, lambda tracker: tracker.log(numbers, self.last))

    def close(self) -> None:
        for name, tracker in self.open.items():
            try:
                with redirect_stdout(sys.stderr):
                    tracker.close()
            except Exception as error:
                self._lose(name, error)
        self.open = {}

    def _each(self, loop: Any, do: Any) -> None:
        for name in self.names:
            if name in self.lost:
                continue
            try:
                if name not in self.open:
                    folder = loop.run.folder / "tracked"
                    folder.mkdir(exist_ok=True)
                    made = TRACKERS[name][0]
                    with redirect_stdout(sys.stderr):  # some greet on stdout, where --json writes
                        self.open[name] = made(folder, loop.run.folder.name, flat(loop.run.config), self.last)
                with redirect_stdout(sys.stderr):
                    do(self.open[name])
            except Exception as error:  # a dashboard never ends a run
                self._lose(name, error)

    def _lose(self, name: str, error: Exception) -> None:
        self.lost.add(name)
        told = " ".join(str(error).split())[:200]
        print(
            f"warning: {name} failed ({type(error).__name__}: {told}); the run goes on without it, and its own database has everything",
            file=sys.stderr,
        )


def steps_before(loop: Any) -> int:
    """Steps of the phases before this one, so that a plan's phases follow one another in a dashboard."""
    phases: list[str] = loop.run.store.phases()
    earlier = phases[: phases.index(loop.phase)] if loop.phase in phases else phases
    return sum(len(loop.run.store.series("tokens", phase)) for phase in earlier)


def flat(settings: Mapping[str, Any], head: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out |= flat(value, f"{head}{key}.") if isinstance(value, Mapping) else {f"{head}{key}": value}
    return out


def _kept(folder: Path, name: str, make: Any) -> str:
    """The id of the tracked run: the one that was used before, or a new one."""
    path = folder / f"{name}.id"
    if not path.exists():
        path.write_text(str(make()))
    return path.read_text().strip()


def _wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        from netrc import netrc

        return netrc(os.environ.get("NETRC")).authenticators("api.wandb.ai") is not None
    except (OSError, ValueError, SyntaxError):
        return False
