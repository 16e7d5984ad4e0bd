"""Of a checkpoint in rows each process reads its own, whoever wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posttrain.models.rows import own_rows, rows_like
from posttrain.runs.tables import own_tables, read_table, whole_tables, write_table

WHOLE = {
    "long": torch.arange(28.0).reshape(7, 4),
    "short": torch.arange(2.0),  # fewer rows than processes: some have none
    "one": torch.ones(1, 3),
}


def written(folder: Path, world: int) -> dict[str, Path]:
    """By so many processes; and a table that one wrote whole."""
    tables = {f"weights.rows-{r}-of-{world}.safetensors": {k: own_rows(x, r, world).contiguous() for k, x in WHOLE.items()} for r in range(world)}  # fmt: skip
    for file, table in (tables | {"state.safetensors": {"n": torch.tensor(3)}}).items():
        write_table(folder / file, table)
    return {file: folder / file for file in (*tables, "state.safetensors")}


@pytest.mark.parametrize("before", [1, 2, 3])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_rows_are_read_by_another_number_of_processes(tmp_path: Path, before: int, after: int) -> None:
    files = written(tmp_path, before)
    for rank in range(after):
        got = own_tables(files, rank, after)
        assert got["state"]["n"] == 3 and set(got["weights"]) == set(WHOLE)
        for name, x in WHOLE.items():
            want = own_rows(x, rank, after)
            assert torch.equal(got["weights"][name], want), (name, rank)
            assert torch.equal(rows_like(want, got["weights"][name], rank, after), want), "they are not cut again"
            assert torch.equal(rows_like(want, x, rank, after), want), "and whole ones are"
    whole = whole_tables({file: read_table(at) for file, at in files.items()})
    assert all(torch.equal(whole["weights"][name], x) for name, x in WHOLE.items())
