"""What token ids stand for, as far as a run has met them."""

from __future__ import annotations

from posttrain.runs.reader import Reader


def pieces_of(reader: Reader, ids: list[int]) -> dict[int, str]:
    """id -> its text; bytes that are no whole character as \\xe2."""
    out: dict[int, str] = {}
    for at in range(0, len(ids), 500):
        some = ids[at : at + 500]
        query = f"SELECT id, bytes FROM pieces WHERE id IN ({','.join('?' * len(some))})"
        out |= {
            i: b.decode("utf-8", "backslashreplace") if isinstance(b, bytes) else str(b)
            for i, b in reader.db.execute(query, some)
        }
    return out
