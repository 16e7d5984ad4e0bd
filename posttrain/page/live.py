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
    """{"steps", "state"} now and whenever it has changed; None from time to time, so that a connection that is gone is noticed."""
    where = Path(folder.summary(name).folder)
    seen: object = None
    told = time.monotonic()
    while True:
        try:
            with closing(Reader(where / "run.sqlite")) as reader:
                while True:
                    running = held(where)
                    now = (reader.db.execute("PRAGMA data_version").fetchone()[0], running)
                    if now != seen:
                        seen, told = now, time.monotonic()
                        yield {"steps": sum(p.steps for p in phases(reader)), "running": running}
                    elif time.monotonic() - told > ALIVE:
                        told = time.monotonic()
                        yield None
                    await asyncio.sleep(POLL if running else IDLE)
        except (UserError, sqlite3.Error):  # deleted, begun anew, held: it may come back
            seen = None
            yield None
            await asyncio.sleep(IDLE)
