"""A run's folder when several processes work on it: the lead writes everything but checkpoints of weights that are in rows, of which each
process writes its own. The folder must be on a disk that all of them see.

checkpoints/<phase>-<step>/: as always; of a table in rows, `<table>.rows-<r>-of-<n>.safetensors` of every process. A reader puts the rows
together, so any number of processes, one included, goes on from it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.ranks import by_lead, ranks
from posttrain.runs.best import Best, best_of, is_better
from posttrain.runs.checkpoint import Checkpoint, Share, begin_writing, disk_errors, finish_writing, name_of, read
from posttrain.runs.learner_tables import learner_tables, load_learners, tables_in_rows
from posttrain.runs.run import Run
from posttrain.runs.tables import Tables, size_of, write_table


def open_run(folder: Path, settings: dict[str, Any], fresh: bool = False, extend: bool = False) -> Run:
    """The run's folder, as this process has it."""
    here = ranks()
    if here.world == 1 and not hasattr(here, "gather_saving"):
        return Run(folder, settings, fresh=fresh, extend=extend)
    return Lead(folder, settings, fresh=fresh, extend=extend) if here.lead else Follower(folder, settings)


class Shared:
    """What both kinds do together."""

    def shared(self, loop: Any) -> Share:
        """Which rows of a checkpoint are this process's; all processes ask at the same time."""
        here = ranks()
        return (here.rank, here.world) if any(tables_in_rows(loop.learners).values()) else None

    def saved(self, now: bool) -> None:
        """now: the run ends here, and nobody ends before the lead has written."""
        if now:
            here: Any = ranks()
            here.gather_saving("saved")

    def _write_rows(self, at: Path, ck: Checkpoint, mine: dict[str, list[str]]) -> dict[str, dict[str, Any]]:
        """This process's rows, into a checkpoint that is being written; file -> its facts."""
        here, out = ranks(), {}
        for table, names in mine.items():
            file = f"{table}.rows-{here.rank}-of-{here.world}.safetensors"
            rows = {name: ck.tables[table][name] for name in names}
            with disk_errors(at.parent, size_of({table: rows})):
                out[file] = write_table(at / file, rows)
        return out


class Lead(Shared, Run):
    """The process that writes."""

    def __init__(self, folder: Path | str, config: dict[str, Any], fresh: bool = False, extend: bool = False) -> None:
        by_lead(lambda: Run.__init__(self, folder, config, fresh=fresh, extend=extend))

    def restore(self, loop: Any) -> int:
        self.share = self.shared(loop)
        first, loop.stopping = by_lead(lambda: (Run.restore(self, loop), loop.stopping))
        return first

    def save(self, loop: Any, step: int, now: bool = False) -> None:
        super().save(loop, step, now)
        self.saved(now)

    def _write(self, ck: Checkpoint, rows: dict[str, list[str]]) -> None:
        """Every process writes its rows into the same temporary folder; then it gets its name."""
        here: Any = ranks()
        if not any(rows.values()):
            super()._write(ck, rows)
            return
        at = begin_writing(self.checkpoints, ck)
        here.gather_saving(str(at))
        files = self._write_rows(at, ck, rows)
        for some in here.gather_saving(files):
            files |= some
        plain: Tables = {
            t: {n: x for n, x in table.items() if n not in rows.get(t, ())} for t, table in ck.tables.items()
        }
        finish_writing(self.checkpoints, at, Checkpoint(ck.phase, ck.step, plain, ck.state, ck.rounded), files)
        here.gather_saving("done")

    def finished(self, phase: str) -> bool:
        return by_lead(lambda: Run.finished(self, phase))

    def read_summary(self) -> dict[str, Any] | None:
        return by_lead(lambda: Run.read_summary(self))

    def keep_best(self, loop: Any, step: int, score: float) -> None:
        if by_lead(lambda: is_better(best_of(self.folder, loop.phase), Best(step, score))):
            weights = loop.policy.state_dict()  # whole: all processes ask
            self._keep_best(loop.phase, Best(step, score), lambda: {"weights": weights})


class Follower(Shared, Run):
    """Any other process: it reads checkpoints and writes its rows, nothing else."""

    def __init__(self, folder: Path | str, config: dict[str, Any]) -> None:
        self._prepare(folder, config)
        by_lead(_never)
        self.state = SimpleNamespace(now=lambda **known: None, end=lambda error: None)  # type: ignore[assignment]

    def close(self) -> None:
        self.writer.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()

    def restore(self, loop: Any) -> int:
        self.share = self.shared(loop)
        first, stopping = by_lead(_never)
        if first:
            ck = read(
                self.checkpoints / name_of(loop.phase, first - 1), self.share, hashed=False
            )  # the lead found it intact
            load_learners(loop.learners, ck.tables, ck.state["learners"])
            for name, part in loop.stateful().items():
                if name in ck.state["parts"]:
                    part.load_state_dict(ck.state["parts"][name])
        loop.stopping = stopping
        return int(first)

    def save(self, loop: Any, step: int, now: bool = False) -> None:
        self.writer.wait()
        tables, _ = learner_tables(loop.learners)
        rows = tables_in_rows(loop.learners)
        if not any(rows.values()):
            self.saved(now)
            return
        ck = Checkpoint(
            loop.phase, step, self.copy({t: {n: tables[t][n] for n in names} for t, names in rows.items()}), {}
        )

        def work() -> None:
            here: Any = ranks()
            at = Path(here.gather_saving("")[0])
            here.gather_saving(self._write_rows(at, ck, rows))
            here.gather_saving("done")

        work() if now else self.writer.start(work)
        self.saved(now)

    def log(self, *args: Any) -> None:
        pass

    def event(self, *args: Any) -> None:
        pass

    def finished(self, phase: str) -> bool:
        return bool(by_lead(_never))

    def finish(self, phase: str) -> None:
        self.writer.wait()

    def read_summary(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = by_lead(_never)
        return found

    def keep_best(self, loop: Any, step: int, score: float) -> None:
        if by_lead(_never):
            loop.policy.state_dict()

    def load_weights(self, phase: str, policy: Policy) -> bool:
        raise UserError("plans of several phases run in one process so far; leave --gpus away")


def _never() -> Any:
    raise AssertionError("only the lead does this")
