"""SQL over a SQLite file, read-only unless asked for otherwise."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from posttrain.core.errors import UserError
from posttrain.tools.tool import Tool, ToolError, tool

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_NEVER = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}  # other files, and settings
_TABLES = "select name, sql from sqlite_master where type in ('table', 'view') and sql is not null order by name"


def sql(database: str, write: bool = False, seconds: float = 5.0, rows: int = 50) -> Tool:
    """A tool that runs one statement at a time on a file; its description has the tables, so that a model knows them."""
    path = Path(database)
    if not path.is_file():
        raise UserError(f"there is no database at {database}; name a SQLite file")
    uri = f"file:{quote(str(path.resolve()))}?mode={'rw' if write else 'ro'}"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as known:
            tables = "; ".join(" ".join(text.split()) for _, text in known.execute(_TABLES))
    except sqlite3.DatabaseError as error:
        raise UserError(f"{database} is not a SQLite file: {error}") from None

    def sql(query: str) -> str:
        """Run one SQL statement.

        query: a statement in SQLite's dialect
        """
        return answer(uri, query, write, seconds, rows)

    sql.__doc__ = (sql.__doc__ or "").replace("Run one SQL statement.", f"Run one SQL statement{'' if write else ' (reading only)'} on a SQLite database with: {tables[:1500] or 'no tables'}")  # fmt: skip
    return tool(sql, seconds=seconds + 5.0)


def answer(uri: str, query: str, write: bool, seconds: float, rows: int, longest: int = 1 << 20) -> str:
    """The rows as lines, the columns first; errors of the statement in words. longest: bytes of a value. No clock is looked at inside one
    function, and `instr` of two long texts takes as long as their product."""
    due = time.monotonic() + seconds
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)
            database.set_authorizer(
                lambda act, *_: (
                    sqlite3.SQLITE_OK if act in _READS or (write and act not in _NEVER) else sqlite3.SQLITE_DENY
                )
            )
            database.set_progress_handler(lambda: int(time.monotonic() > due), 10_000)
            with database:
                cursor = database.execute(query)
                found = cursor.fetchmany(rows + 1)
            if cursor.description is None:
                return f"done, {max(cursor.rowcount, 0)} rows changed"
            lines = [" | ".join(c[0] for c in cursor.description)]
            lines += [" | ".join("NULL" if x is None else str(x) for x in row) for row in found[:rows]]
            return "\n".join([*lines, *(["... more rows were left out; use LIMIT"] if len(found) > rows else [])])
    except sqlite3.Error as error:
        if "interrupted" in str(error):
            raise ToolError(f"the statement ran longer than {seconds:g} s") from None
        forbidden = "not authorized" in str(error) or "prohibited" in str(error)
        hint = "; this database is read-only: use SELECT" if forbidden and not write else ""
        raise ToolError(f"{error}{hint}") from None
