"""Runs under one folder, by the names of a listing and never by a path; each request opens a run read-only, for as long as it reads."""

from __future__ import annotations

import sqlite3
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from posttrain.core.errors import UserError, unknown
from posttrain.runs.reader import Reader
from posttrain.runs.reading import Summary, all_runs, read_run
from posttrain.runs.schema import sentence

SECONDS = 10.0  # longest that the queries of a request may take
_FRESH = 1.0  # seconds that a listing is good for
_CHECK_EVERY = 2000  # steps of SQLite's machine between two looks at the clock


class Folder:
    """A folder of runs, or one run; `name` is what the page calls a run."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UserError(f"there is no folder {root}; give a folder of runs, or a run: posttrain view runs")
        self.root = root
        self._listed: tuple[float, list[Summary]] = (0.0, [])

    @property
    def above(self) -> Path:
        """The folder of runs, where the root is a run itself too."""
        return self.root.resolve().parent if (self.root / "run.sqlite").exists() else self.root

    def runs(self) -> list[Summary]:
        """Every run, the newest first."""
        when, found = self._listed
        if time.monotonic() - when > _FRESH or not found:
            found = [replace(run, name=spelled(run.name)) for run in reversed(all_runs(self.root))]
            self._listed = (time.monotonic(), found)
        return found

    def summary(self, name: str) -> Summary:
        """One run as it is now."""
        for run in self.runs():
            if run.name == name:
                return replace(read_run(Path(run.folder), Path(run.folder).parent), name=name)
        raise unknown("run", name, [run.name for run in self.runs()])

    @contextmanager
    def open(self, name: str) -> Iterator[Reader]:
        """Its database, read-only, with a limit on the time of a query; what cannot be read in it is a sentence."""
        file = Path(self.summary(name).folder) / "run.sqlite"
        with readable(file), Reader(file) as reader, limited(reader.db):
            yield reader


def spelled(name: str) -> str:
    """A folder's name as text: bytes that are no UTF-8, which no address can hold, as \\xff."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """A run may come from anywhere: what it holds that no run of posttrain has written is no bug of the page."""
    try:
        yield
    except UserError:
        raise
    except sqlite3.Error as error:
        told = sentence(error, file)
        raise told if isinstance(told, UserError) else damaged(error) from None
    except (ValueError, TypeError, ArithmeticError, struct.error) as error:
        raise damaged(error) from None


def damaged(error: Exception) -> UserError:
    return UserError(f"the database of this run holds what cannot be read ({error}); other runs are not concerned")


@contextmanager
def limited(db: sqlite3.Connection, seconds: float = SECONDS) -> Iterator[None]:
    """A query that takes longer ends with a sentence."""
    deadline = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > deadline, _CHECK_EVERY)
    try:
        yield
    except sqlite3.OperationalError as error:
        if "interrupted" not in str(error):
            raise
        raise UserError(f"that took longer than {seconds:g} s; ask for fewer steps, or a filter less") from None
    finally:
        db.set_progress_handler(None, 0)
