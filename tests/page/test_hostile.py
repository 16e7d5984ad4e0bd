"""Runs from elsewhere: damaged files, rows that no run has written, parameters that nobody means. Each is an answer or a sentence, soon."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from posttrain.core import codec
from posttrain.core.errors import UserError
from posttrain.page.api import ROUTES, answer
from posttrain.page.app import encoded
from posttrain.page.folder import Folder
from posttrain.page.report import report
from tests.page import made

ONE = {"run": "one", "phase": "train", "step": "2", "group": "0", "sample": "0", "name": "grpo"}
ODD = ("--5", "-", "+1", "1.5", "٣", "²", "99999999999999999", "-1", "0", "nan", "inf", "\x00", "'", '"', "%", "[", "$.a", "a\\", "[NaN]",
       '["a"]', "[[1]]", "{}", "[1e999, 1]", "[1, 1]", "[99999999999999999999]", "x" * 2000)  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    made.write(folder, "one", steps=4)
    made.write(folder, "two", steps=2)
    return folder


@pytest.fixture
def root(source: Path, tmp_path: Path) -> Path:
    shutil.copytree(source, tmp_path / "runs")
    return tmp_path / "runs"


def asked(root: Path, address: str, **params: str) -> dict[str, Any] | None:
    """What the page gets, as JSON; None where it is a sentence."""
    try:
        found: dict[str, Any] = json.loads(encoded(answer(Folder(root), address, params)))
        return found
    except UserError as error:
        assert str(error) and "\n" not in str(error)
        return None


def every(root: Path) -> dict[str, Any]:
    """Every address of the run `one`; the other run is not concerned, whatever was done to this one."""
    out: dict[str, Any] = {}
    for address, (_, needed, _) in ROUTES.items():
        out[address] = asked(root, address, **{k: ONE[k] for k in needed})
    for address in ("run", "metrics", "group"):
        needed = ROUTES[address][1]
        found = asked(root, address, **{k: ONE[k] for k in needed} | {"run": "two"})
        assert found, f"{address} of a run that is whole"
    return out


@pytest.mark.parametrize("address", ROUTES)
def test_parameters_that_nobody_means(root: Path, address: str) -> None:
    _, needed, allowed = ROUTES[address]
    for name in needed | allowed:
        for odd in ODD:
            given = {k: ONE[k] for k in needed} | ({"component": "numeric"} if name.startswith("component") else {})
            began = time.monotonic()
            asked(root, address, **given | {name: odd})
            assert time.monotonic() - began < 5, (name, odd)


NUMBERS = (
    '{"a": NaN}', '{"accuracy_after": NaN, "accuracy_before": Infinity, "seconds": NaN}',
    '{"step": 1e400, "seconds": 1e400, "started": 1e400, "before": NaN}',
    f'{{"step": {"9" * 400}, "seconds": {"9" * 400}, "started": {"9" * 400}, "accuracy_before": {"9" * 400}, "accuracy_after": 1}}',
    '{"before": [1e999, "x"], "after": [NaN], "name": 5}', '{"steps": 5, "a": NaN, "b": [Infinity], "eval_problems": 1e999, "parts": 5}',
    "", "null", "[]", "[" * 5000, '{"accuracy_after": "x", "state": 5, "steps": "x", "seed": [1], "task": {}}', "\x00",
)  # fmt: skip


@pytest.mark.parametrize("file", ["summary.json", "notes.json", "held_out.json", "state.json", "config.json"])
def test_damaged_files(root: Path, file: str) -> None:
    """A run that diverged writes NaN into its summary: its page opens all the same, and the list of runs shows the others."""
    for text in NUMBERS:
        (root / "one" / file).write_text(text)
        found = every(root)
        assert found["runs"] and "two" in {r["name"] for r in found["runs"]["runs"]}, text[:60]
        if file not in ("config.json",):
            assert found["run"] and found["metrics"]["curves"]["reward"]["mean"] == [0.0, 0.25, 0.5, 0.75], text[:60]


ROWS = {
    "UPDATE bodies SET rewards = '{broken'": "run metrics rollouts group tokens",
    "UPDATE turns SET tokens = x'ff00'": "run metrics rollouts",
    "UPDATE turns SET logp = x''": "run metrics rollouts group",
    "UPDATE turns SET adv = x'3dffffffff6600000000'": "run metrics rollouts group",
    "UPDATE rollouts SET total = 'abc'": "run metrics rollouts group",
    "UPDATE metrics SET value = 'abc'": "rollouts group tokens",
    "UPDATE groups SET gold = 'NaN', messages = '5'": "run metrics rollouts group tokens",
    "UPDATE groups SET gold = '{\"a\": NaN}', messages = '[1, null, {\"content\": NaN}]'": "run metrics rollouts group tokens",
    "UPDATE metrics SET step = 900000000000000000 WHERE step = 3 AND name = 'reward'": "rollouts group tokens",
    "UPDATE metrics SET step = -5 WHERE step = 0": "rollouts group tokens",
    "UPDATE metrics SET value = 9e999": "run metrics rollouts group tokens",
    "UPDATE components SET weight = 'x'": "run metrics rollouts group tokens",
    'INSERT INTO calls SELECT id, 0, \'[{"arguments": NaN, "seconds": Infinity}]\' FROM rollouts': "run metrics tokens",
    "UPDATE bodies SET text = x'ff', stop = 5": "run metrics rollouts group tokens",
    "UPDATE pieces SET bytes = 'abc'": "run metrics rollouts group tokens",
    "INSERT INTO events (phase, step, kind, message) VALUES ('train', NULL, 5, NULL)": "run metrics rollouts group tokens",
    "UPDATE phases SET phase = NULL": "",
    "DROP TABLE turns": "run metrics",
    "DROP TABLE rollouts": "metrics",
    "DROP TABLE phases": "",
    "UPDATE turns SET text = ''": "run metrics rollouts group tokens",
    "PRAGMA user_version = 99": "",
}


@pytest.mark.parametrize("sql", ROWS)
def test_damaged_rows(root: Path, sql: str) -> None:
    """What cannot be read is a sentence; what has nothing to do with it is shown."""
    with sqlite3.connect(root / "one" / "run.sqlite") as db:
        db.execute(sql)
    db.close()
    began, found = time.monotonic(), every(root)
    assert time.monotonic() - began < 20
    assert {name for name in ROWS[sql].split() if not found[name]} == set()
    assert "two" in {r["name"] for r in found["runs"]["runs"]}


def test_a_monitor_that_cannot_read_says_so(root: Path) -> None:
    with sqlite3.connect(root / "one" / "run.sqlite") as db:
        db.execute("UPDATE bodies SET rewards = '{broken'")
    db.close()
    (told,) = (asked(root, "run", run="one") or {})["warnings"]
    assert told["says"].startswith("the monitors cannot read train: ")


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_a_file_that_is_no_database(root: Path, damage: bytes | None) -> None:
    file = root / "one" / "run.sqlite"
    whole = file.read_bytes()
    file.write_bytes(whole[:5000] if damage is None else damage)
    every(root)


def test_few_bytes_do_not_become_gigabytes() -> None:
    """`=`, a count of 2^32 - 1, one float: 32 GB as a list."""
    with pytest.raises(ValueError, match="4294967295 equal numbers"):
        codec.decode(b"=" + struct.pack("<I", (1 << 32) - 1) + b"f" + bytes(4))
    assert codec.decode(b"=" + struct.pack("<I", 6) + b"f" + struct.pack("<f", 0.5)) == [0.5] * 6
    for odd in (b"", b"\xff\x00", b"z1234"):
        with pytest.raises(ValueError, match="a stream of the kind"):
            codec.decode(odd)


def test_what_json_does_not_know() -> None:
    found = json.loads(encoded({"a": math.nan, "b": [math.inf, 1.5], "c": b"\xff", "d": ("x", -math.inf)}))
    assert found == {"a": None, "b": [None, 1.5], "c": "\\xff", "d": ["x", None]}


def test_a_folder_whose_name_is_no_text(root: Path) -> None:
    """No address can hold the bytes: it is spelled, opened by that, and its report is written."""
    os.rename(os.fsencode(root / "one"), os.fsencode(root) + b"/odd\xff")
    names = {r["name"] for r in (asked(root, "runs") or {})["runs"]}
    assert names == {"odd\\xff", "two"}
    assert (asked(root, "run", run="odd\\xff") or {})["run"]["name"] == "odd\\xff"
    assert "<title>odd\\xff · posttrain</title>" in report(Folder(root), "odd\\xff").encode().decode()


@pytest.mark.parametrize(
    "name", ['a"b', "back\\slash", "$.x", "[0]", "<img src=x onerror=window.hacked=1>", "\u202e", "a.b"]
)
def test_components_of_any_name(root: Path, name: str) -> None:
    """Every answer has 0.5 of it but the first of each group, which has 0."""
    with sqlite3.connect(root / "one" / "run.sqlite") as db:
        for id, sample in db.execute("SELECT id, sample_index FROM rollouts").fetchall():
            db.execute(
                "UPDATE bodies SET rewards = ? WHERE id = ?",
                (json.dumps({name: 0.5 if sample else 0.0, "nan": math.nan}), id),
            )
    db.close()
    given = {"run": "one", "phase": "train", "component": name, "limit": "200"}
    assert len((asked(root, "rollouts", **given, component_low="0.25") or {})["rows"]) == 4 * 3 * 3
    assert len((asked(root, "rollouts", **given, component_high="0.25") or {})["rows"]) == 4 * 3
