"""Search over one's own documents: a full-text index (SQLite FTS5, ranked by BM25) of a folder or a JSONL file."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.environments.rows import Bad, read_rows
from posttrain.tools.tool import Tool, tool

_TEXT = ("text", "contents", "content", "body", "passage", "document")
_TITLE = ("title", "name", "id", "_id")
_FILES = (".txt", ".md", ".rst")
_MOST_WORDS = 40  # of a query


def search(documents: str, k: int = 3, characters: int = 600) -> Tool:
    """A tool that finds the k best documents of a folder (.txt, .md, .rst) or of a JSONL file with a column `text` (and `title`)."""
    return search_over(pairs(documents), k, characters)


def search_over(documents: Iterable[tuple[str, str]], k: int = 3, characters: int = 600) -> Tool:
    """The same over documents that are at hand, each a title and a text."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute("create virtual table documents using fts5(title, body, tokenize='porter unicode61')")
    index.executemany("insert into documents values (?, ?)", documents)
    index.commit()
    lock = threading.Lock()

    def search(query: str) -> str:
        """Search the documents by words and read the best ones.

        query: words that the document should have
        """
        words = re.findall(r"\w+", query)[:_MOST_WORDS]
        asked = " OR ".join(f'"{word}"' for word in words)
        with lock:
            found = index.execute("select title, body from documents where documents match ? order by rank limit ?", (asked, k)).fetchall() if words else []  # fmt: skip
        if not found:
            return "nothing was found; try other words"
        return "\n\n".join(f"[{i}] {title}\n{body[:characters].strip()}" for i, (title, body) in enumerate(found, 1))

    return tool(search, seconds=5.0)


def pairs(documents: str) -> Iterator[tuple[str, str]]:
    """(title, text) of every document."""
    path = Path(documents)
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix in _FILES and f.is_file())
        if not files:
            raise UserError(f"the folder {documents} has no documents; it is searched for {', '.join(_FILES)}")
        yield from ((str(f.relative_to(path)), f.read_text(encoding="utf-8", errors="replace")) for f in files)
        return
    for where, row in read_rows(documents):
        text = None if isinstance(row, Bad) else next((row[n] for n in _TEXT if isinstance(row.get(n), str)), None)
        if isinstance(row, Bad) or text is None:
            told = row.reason if isinstance(row, Bad) else f"it has no text in a column {', '.join(_TEXT)}"
            raise UserError(f"{documents}, {where}: {told}")
        yield str(next((row[n] for n in _TITLE if row.get(n)), where)), text
