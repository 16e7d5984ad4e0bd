"""A run is a folder: the settings, the database, checkpoints, artifacts. Killed at any moment, it resumes bit for bit.

runs/<name>/: config.json and config.toml (the settings), run.sqlite, checkpoints/<phase>-<step>/, best/ (the checkpoint with the
best held-out score), artifacts/, notes.json, summary.json, held_out.json, state.json (how far it is, for `posttrain runs`)
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch

from posttrain.core.errors import UserError
from posttrain.core.machine import free_memory
from posttrain.core.protocols import Policy
from posttrain.core.types import Group
from posttrain.runs.background import Background
from posttrain.runs.best import BEST, Best, keep_best
from posttrain.runs.checkpoint import Checkpoint, Share, detach, disk_errors, newest, prune, sweep, write, write_atomic
from posttrain.runs.learner_tables import learner_tables, load_learners, tables_in_rows
from posttrain.runs.lock import hold, release
from posttrain.runs.settings import agreed, foreign, read_config, same_threads
from posttrain.runs.settings import check_name as check_name
from posttrain.runs.small_files import DONE as DONE
from posttrain.runs.small_files import SmallFiles
from posttrain.runs.state import State, reopen, still_stopped, stopped, wipe
from posttrain.runs.store import Store, begin_phase
from posttrain.runs.tables import HostCopy, Tables, size_of

_SHARE = 0.4  # of the free memory that a copy of the state may take; a larger state is written before training goes on


class Run(SmallFiles):
    """The folder of a run, held by one writing process at a time; `Run.open` reads without holding it."""

    store: Store
    writer: Background
    _written: list[int]

    def __init__(
        self, folder: Path | str, config: dict[str, Any], resume: bool = True, fresh: bool = False, extend: bool = False
    ) -> None:
        self._prepare(folder, config)
        if found := foreign(self.folder):
            raise UserError(
                f"{self.label} is not a run: it holds {', '.join(found)} that no run has written; use another --name"
            )
        with disk_errors(self.label, 0):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._release = weakref.finalize(self, release, *hold(self.folder, self.label))
        try:
            self._begin(fresh or not resume, extend)
        except BaseException:
            self._release()
            raise

    def _prepare(self, folder: Path | str, config: dict[str, Any]) -> None:
        self.label = Path(folder)  # as it was typed, for people
        self.folder = self.label.absolute()  # a reward may change the working directory
        self.config = json.loads(json.dumps(config))
        self.log_rollouts = int(self.config.get("log_rollouts", -1))
        self.writer, self.copy, self._written = Background(), HostCopy(), []

    def _begin(self, fresh: bool, extend: bool) -> None:
        if fresh:
            wipe(self.folder)
        path, old = self.folder / "config.json", None
        if path.exists():
            old = read_config(self.folder)
            self.earlier = _fingerprint(old)  # versions before 0.2 counted the steps in
            asked = same_threads(self.folder, old, self.config)
            self.config = agreed(self.label, old, asked, extend, saved=self._any_checkpoint())
            if self._any_checkpoint() and not (self.folder / "run.sqlite").exists():
                raise UserError(
                    f"{self.label} has checkpoints but no run.sqlite: what it measured and sampled so far is gone; put the "
                    "file back, or use another --name, or --fresh to start over"
                )
        elif (self.folder / "run.sqlite").exists() or self._any_checkpoint():
            raise UserError(f"{self.label} has no config.json; use another --name, or --fresh to start over")
        else:
            write_atomic(path, json.dumps(self.config, indent=2) + "\n")
        self.checkpoints.mkdir(exist_ok=True)
        sweep(self.checkpoints, self.folder / BEST)
        if old is not None and old != self.config:
            reopen(self.folder)  # it is continued: first it is no longer at its end, then it is longer
            write_atomic(path, json.dumps(self.config, indent=2) + "\n")
        self.store = Store(self.folder / "run.sqlite", background=True)
        self.state = State(self.folder)

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        """For readers: nothing is created, locked or changed, and a live run may be read."""
        run = cls.__new__(cls)
        run.label = run.folder = Path(folder)
        run.config = read_config(run.folder)
        run.store = Store(run.folder / "run.sqlite", readonly=True)
        run._release = lambda: None  # type: ignore[assignment]
        run.writer, run._written = Background(), []
        return run

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def close(self) -> None:
        """Whatever happened, a checkpoint that is being written gets written."""
        try:
            self.writer.wait()
        finally:
            if hasattr(self, "store"):
                self.store.close()
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self.close()  # what is still being written is complete before the run says how it ended
        except BaseException as late:
            error = late
            raise
        finally:
            if hasattr(self, "state"):
                self.state.end(error)

    # ---- what the loop calls

    share: Share = None  # which rows of a checkpoint this process reads; None: whole tensors

    def restore(self, loop: Any) -> int:
        """The newest good checkpoint of the phase into the loop; the first step to do, 0 without a checkpoint.

        Rows written at or after that step are deleted, because the step is done again.
        """
        check_name(loop.phase)
        self.log_rollouts = loop.config.log_rollouts
        self.writer.wait()
        ck = newest(self.checkpoints, loop.phase, share=self.share)
        first = 0 if ck is None else ck.step + 1
        if ck is not None:
            if ck.state["config"] not in (self.fingerprint, self.earlier):
                raise UserError(
                    f"checkpoint {ck.phase}-{ck.step:06d} is of other settings; use another --name, or --fresh"
                )
            again = self._knows(ck) - ck.step
            load_learners(loop.learners, ck.tables, ck.state["learners"])
            for name, part in loop.stateful().items():
                newer = name.startswith("monitor") and name not in ck.state["parts"]  # than the checkpoint: it begins
                if not newer:
                    part.load_state_dict(ck.state["parts"][name])
            prune(self.checkpoints, ck.phase, ck.step, loop.config.keep_checkpoints)  # a kill may have come before it
            loop.stopping = still_stopped(ck.state, loop.config.steps, self.label)
        self.store.forget(loop.phase, first)
        begin_phase(self.store, loop)
        if ck is not None and first < loop.config.steps:
            lost = f"; {again} later {'step is' if again == 1 else 'steps are'} done again" if again else ""
            self.store.event(loop.phase, ck.step, "restart", f"went on from the checkpoint after step {first}{lost}")
        return first

    def log(self, phase: str, step: int, metrics: dict[str, float], groups: list[Group], seconds: float) -> None:
        """Metrics and rollouts of a step, in one transaction."""
        self.store.log(phase, step, metrics, groups, seconds, self.log_rollouts)
        self.state.now(phase=phase, step=step + 1)

    def prepare(self, loop: Any) -> None:
        """After a first step, when there is all that a checkpoint holds: make room for its copy."""
        tables, _ = learner_tables(loop.learners)
        if size_of(tables) < _SHARE * (free_memory() or 0):
            self.copy.prepare(tables)

    def save(self, loop: Any, step: int, now: bool = False) -> None:
        """A checkpoint after `step`: copied at once, written while training goes on (now: before this returns); older ones go
        only once it is complete. One is written at a time, so memory holds one copy."""
        self.writer.wait()
        parts = {name: part.state_dict() for name, part in loop.stateful().items()}
        learners = {role: learner.state() for role, learner in loop.learners.items()}
        state = {"learners": learners, "parts": parts, "config": self.fingerprint} | stopped(loop)
        tables, rounded = learner_tables(loop.learners)
        state, tables = detach(state, tables)  # new lists and dicts: what the parts hold goes on changing
        beside = not now and size_of(tables) < _SHARE * (free_memory() or 0)
        ck = Checkpoint(loop.phase, step, self.copy(tables) if beside else tables, state, rounded)
        keep, rows = loop.config.keep_checkpoints, tables_in_rows(loop.learners)

        def work() -> None:
            self.store.sync()  # a checkpoint must not outlive the rows that led to it
            self._write(ck, rows)
            prune(self.checkpoints, ck.phase, ck.step, keep)
            self._written.append(step)

        self.writer.start(work) if beside else work()

    def _write(self, ck: Checkpoint, rows: dict[str, list[str]]) -> None:
        write(self.checkpoints, ck)

    def written(self) -> list[int]:
        """Steps whose checkpoints became complete since the last time this was asked; an error of writing comes out here."""
        self.writer.check()
        done, self._written = self._written, []
        return done

    def keep_best(self, loop: Any, step: int, score: float) -> None:
        """The weights after a step that was evaluated, if they are the best so far."""
        self._keep_best(loop.phase, Best(step, score), loop.learner.tensors)

    def _keep_best(self, phase: str, found: Best, weights: Callable[[], Tables]) -> None:
        keep_best(self.folder, phase, found, weights, self.fingerprint)

    def event(self, phase: str, step: int, kind: str, message: str) -> None:
        self.store.event(phase, step, kind, message)

    # ---- phases

    def finished(self, phase: str) -> bool:
        return self.store.finished(phase)

    def finish(self, phase: str) -> None:
        """The phase and all it leaves behind are complete; a restart will not do it again."""
        self.writer.wait()
        self.store.finish(check_name(phase))

    def load_weights(self, phase: str, policy: Policy) -> bool:
        """The weights a phase ended with, into a policy; False, and nothing is loaded, where only earlier ones are intact."""
        self.writer.wait()
        ck = newest(self.checkpoints, phase)
        if ck is None:
            raise UserError(f"{self.label} has no checkpoint of phase {phase!r}; start over with --fresh")
        if any(step > ck.step for step, _ in self.store.series("tokens", phase)[-1:]):
            return False
        self.put(ck, policy)
        return True

    def put(self, ck: Checkpoint, policy: Policy) -> None:
        """The weights of a checkpoint into a policy (a critic it has dropped since left out); in float32 where the run kept them."""
        weights = ck.tables["weights"]
        if next(policy.parameters()).dtype == torch.float32:
            weights = weights | {k: x for k, x in ck.tables.get("masters", {}).items() if k in weights}
        if getattr(policy, "critic", None) is None:
            weights = {k: x for k, x in weights.items() if not k.startswith("critic.")}
        missing, unexpected = policy.load_state_dict(weights, strict=False)
        tied = [m for m in missing if not m.endswith("lm_head.weight")]
        if tied or unexpected:
            raise UserError(
                f"phase {ck.phase!r} trained another model: missing {tied[:3]}, unexpected {unexpected[:3]}"
            )

    # ---- inside

    earlier = ""

    @property
    def fingerprint(self) -> str:
        """What a checkpoint must be of; the same for the first steps of a run and for all of a longer one."""
        return _fingerprint({k: v for k, v in self.config.items() if k != "steps"})

    def _knows(self, ck: Checkpoint) -> int:
        """The last step whose rows are known. A checkpoint is begun only once those of its steps are on the disk: without them the database is another one."""
        done = self.store.series("tokens", ck.phase)
        if not done or done[-1][0] < ck.step:
            raise UserError(
                f"run.sqlite of {self.label} has {len(done)} steps of {ck.phase}, and its checkpoint {ck.step + 1}: what was measured "
                "is not there; put the file back, or use another --name, or --fresh to start over"
            )
        return int(done[-1][0])

    def _any_checkpoint(self) -> bool:
        """A complete one: what a kill left half written or half removed is none."""
        return any(not path.name.startswith(".") for path in self.checkpoints.glob("*-*"))


def _fingerprint(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
