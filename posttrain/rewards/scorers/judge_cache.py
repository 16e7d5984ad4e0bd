"""Judgements on disk, by content: what was asked once is never asked again, by a resumed run or by another."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.rewards.runtime.score import say_once


def default_folder() -> Path:
    root = os.environ.get("POSTTRAIN_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "posttrain") / "judge"


class JudgeCache:
    """request -> what the judge said. The key is a hash of the whole request, so another rubric or model is another question.

    Several processes may share the file. Without a folder judgements are kept in memory alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._lock = threading.Lock()
        where = ":memory:"
        if folder is not None:
            where = str(folder / "judgements.sqlite")
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"cannot keep judgements in {folder} ({error.strerror}); say cache='FOLDER'") from None
        try:
            self._db = sqlite3.connect(where, timeout=60, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS said (key TEXT PRIMARY KEY, text TEXT NOT NULL)")
        except sqlite3.Error as error:
            raise UserError(f"cannot keep judgements in {where} ({error}); say cache='FOLDER'") from None

    def get(self, keys: list[str]) -> dict[str, str]:
        try:
            with self._lock:
                found = [self._db.execute("SELECT key, text FROM said WHERE key = ?", (k,)).fetchone() for k in keys]
        except sqlite3.Error as error:  # a damaged file: the judge is asked again
            say_once(f"kept judgements cannot be read ({error})")
            return {}
        return {row[0]: row[1] for row in found if row is not None}

    def put(self, said: dict[str, str]) -> None:
        """Kept at once; what another process said first stays. A full disk costs requests, not the run."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany("INSERT OR IGNORE INTO said VALUES (?, ?)", list(said.items()))
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                say_once(f"judgements cannot be kept ({error}); they are asked for again when they are needed")
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")


def key_of(url: str, body: dict[str, Any], attempt: int = 0) -> str:
    """The content of a request as a key; attempt: the same question, asked again."""
    content = [url, body, attempt] if attempt else [url, body]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
