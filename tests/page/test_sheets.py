"""Audits and data sheets from the command line to the page: what is saved, what is shown of it, what is passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.cli import main
from posttrain.page.api import answer
from posttrain.page.folder import Folder
from posttrain.runs.sheets import save
from tests.page.made import ATTACKS


def sheets_of(runs: Path) -> None:
    """An audit and a data sheet whose every text is an attack."""
    row = {k: ATTACKS[i] for i, k in enumerate(("family", "kind", "verdict", "why"))} | {
        "n": 40,
        "failed": 1,
        "mean": float("nan"),
    }
    audit = {"ok": False, "rows": [row, row | {"verdict": "ok"}], "findings": [ATTACKS[0]], "notes": [ATTACKS[1]]}
    save(runs, "audit", f"reward {ATTACKS[1]}", "sums", ATTACKS[4], audit)
    lengths = {ATTACKS[0]: {ATTACKS[1]: {"min": 1, ATTACKS[2]: 5, "max": 9}}}
    bins = {"characters": {ATTACKS[0]: [[0, 4, 10], [5, 9, 3]]}}
    data = {"understood": [ATTACKS[0]], "findings": [ATTACKS[3]], "lengths": lengths, "bins": bins}
    save(runs, "data", ATTACKS[0], "sums", "posttrain data x", data)


def shown(runs: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(Folder(runs), "sheets", {})["sheets"]
    return found


def test_an_audit_is_kept_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["audit", "numeric", "--task", "arithmetic", "--problems", "40", "--save", "--runs", str(tmp_path)]) == 1
    )
    assert "posttrain view shows it" in capsys.readouterr().err
    main(["audit", "numeric", "--task", "arithmetic", "--problems", "40", "--json"])
    told = json.loads(capsys.readouterr().out)
    main(["audit", "numeric", "--task", "arithmetic", "--problems", "39", "--save", "--runs", str(tmp_path)])
    (sheet,) = shown(tmp_path)
    assert sheet["title"] == "numeric on arithmetic" and sheet["task"] == "arithmetic", "asked again, it is replaced"
    assert sheet["command"] == "posttrain audit numeric --task arithmetic"
    families = sheet["families"]
    assert [f["family"] for f in families] == [r["family"] for r in told["rows"]] and families[0]["n"] == 39
    assert len(sheet["wrong"]) == 1 and sheet["wrong"][0].startswith("prompt echoed: 1 of 39 answers")


def test_a_data_set_is_kept_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten questions of which one comes twice."""
    file = tmp_path / "my.jsonl"
    rows = [{"question": f"What is {i % 9}+{i % 9}?", "answer": str(2 * (i % 9))} for i in range(10)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    runs = tmp_path / "runs"
    runs.mkdir()
    assert main(["data", str(file), "--save", "--runs", str(runs)]) == 0
    (sheet,) = shown(runs)
    assert sheet["kind"] == "data" and sheet["task"] == str(file) and any("question" in t for t in sheet["told"])
    assert [x["of"] for x in sheet["lengths"]] == ["prompt, characters", "answer, characters"]
    assert sheet["lengths"][0]["quantiles"]["max"] == 12 and sum(b[2] for b in sheet["bins"][0]["bins"]) == 10
    assert len(sheet["wrong"]) == 1 and sheet["wrong"][0].startswith("duplicates: 1 of "), (
        "there is no contamination to tell of"
    )


def test_what_is_no_sheet_is_passed_over(tmp_path: Path) -> None:
    sheets_of(tmp_path)
    where = tmp_path / "sheets"
    nested = "[" * 100_000
    wrong = (
        "",
        "{",
        "[]",
        nested,
        '{"kind": "other", "found": {}}',
        '{"kind": "audit", "found": []}',
        "\udcff",
        " " * (1 << 21),
    )
    for i, text in enumerate(wrong):
        (where / f"audit-{i}.json").write_text(text, encoding="utf-8", errors="surrogatepass")
    (where / "folder.json").mkdir()
    odd = {"rows": [1, {"n": True, "mean": "x", "min": 10**400}], "findings": "no", "notes": [None]}
    (where / "audit-odd.json").write_text(json.dumps({"kind": "audit", "title": 7, "found": odd}))
    data = {"lengths": {"a": 1}, "bins": {"a": {"b": [[1, 2], [1, 2, "x"], 3, [1, 2, 3]]}}, "understood": {}}
    (where / "data-odd.json").write_text(json.dumps({"kind": "data", "found": data}))
    found = {s["name"]: s for s in shown(tmp_path)}
    assert len(found) == 4, "the two of before and the two odd ones"
    families = found["audit-odd"]["families"]
    assert families == [
        dict.fromkeys(("family", "kind", "verdict", "why"), "") | dict.fromkeys(("n", "failed", "mean", "min", "max"))
    ]
    assert found["audit-odd"]["told"] == ["None"] and found["data-odd"]["bins"] == [
        {"of": "b, a", "bins": [[1.0, 2.0, 3.0]]}
    ]
    json.dumps(list(found.values()), allow_nan=False)


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["data", "arithmetic", "--save", "--runs", str(tmp_path / "file")]) == 2
    assert "give another folder with --runs" in capsys.readouterr().err


def test_no_sheets_are_none(tmp_path: Path) -> None:
    assert shown(tmp_path) == []
