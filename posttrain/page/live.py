"""What happens to a run, for pages that show it live: its database is asked whether it has changed, which costs a training run nothing.

`PRAGMA data_version` opens no transaction, so no reader holds up the log that the writer keeps beside the database.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.page.folder import Folder
from posttrain.page.series import phases
from posttrain.runs.lock import held
from posttrain.runs.reader import Reader

POLL = 0.25  # seconds between two looks at a run that goes on
IDLE = 2.0  # and at one that does not
ALIVE = 15.0  # seconds after which a silent stream says that it is still there


async def changes(folder: Folder, name: str) -> AsyncIterator[dict[str, Any] | None]:
    """{"steps", "running"} now and whenever it has changed, with {"anew"} where it is another file by now; {"gone"} where there is none any
    more; None from time to time, so that a connection that is gone is noticed."""
    where = Path(folder.summary(name).folder)
    seen: tuple[int, bool] | str | None = None
    anew = False
    told = time.monotonic()
    while True:
        try:
            with closing(Reader(where / "run.sqlite")) as reader:
                file = place_of(reader.path)
                while place_of(reader.path) == file:  # else begun anew: what is open is the file that was there
                    running = held(where)
                    now = (reader.db.execute("PRAGMA data_version").fetchone()[0], running)
                    if now != seen:
                        seen, told = now, time.monotonic()
                        yield {"steps": sum(p.steps for p in phases(reader)), "running": running} | (
                            {"anew": True} if anew else {}
                        )
                        anew = False
                    elif time.monotonic() - told > ALIVE:
                        told = time.monotonic()
                        yield None
                    await asyncio.sleep(POLL if running else IDLE)
            seen, anew = None, True
        except (UserError, sqlite3.Error, OSError):  # deleted, damaged, held: it may come back
            if seen != "gone":
                seen, anew = "gone", True
                yield {"gone": True}
            else:
                yield None
            await asyncio.sleep(IDLE)


def place_of(file: Path) -> tuple[int, int]:
    """Which file it is, whatever its name."""
    found = file.stat()
    return found.st_dev, found.st_ino
