"""docs/scale.md says what the code says, and docs/many-gpus.md where it is about memory."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.plan_curves import plans, table
from benchmarks.plan_published import nemo, syncs
from posttrain.planning.hardware import cluster
from posttrain.planning.layouts import Site
from posttrain.planning.lengths import Lengths
from posttrain.planning.memory import activation_bytes, passing
from posttrain.planning.shapes import KNOWN
from posttrain.planning.work import Work
from tests.cli.conftest import call

ROOT = Path(__file__).parent.parent.parent
PAGE, MANY = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("scale", "many-gpus"))


def test_the_command_prints_what_the_page_shows() -> None:
    command, shown = re.findall(r"```(?:bash|text)\n(.*?)```", PAGE, re.DOTALL)[:2]
    said = call(*shlex.split(command)[1:])
    assert said.code == 0
    printed = " ".join(said.out.split())
    for line in shown.strip().splitlines():
        for part in " ".join(line.split()).split(" ... "):
            assert part.removesuffix(" ...") in printed, part


def test_the_curves_are_those_of_the_simulation() -> None:
    row = table({8: plans(8)}).splitlines()[-1]
    assert row in PAGE


def test_every_checked_row_is_on_the_page() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "plan_check.json").read_text())
    held = [r for r in rows if r["bar"]]
    assert len(held) >= 23 and sum(not r["met"] for r in held) == 2
    for r in held:
        if r["met"]:
            assert f"| {r['name'].removeprefix('planned: ')} |" in PAGE and f"| {r['ratio']:.2f} |" in PAGE
        else:
            assert "slow host" in r["note"]


def told(value: float, unit: str) -> str:
    """Seconds with three digits, ratios with two decimals."""
    return f"{value:.2f} x" if unit == "x" else f"{value:#.3g}".rstrip(".") + f" {unit}"


def test_every_published_row_is_on_the_page() -> None:
    rows = json.loads((ROOT / "benchmarks" / "results" / "plan_check.json").read_text())
    found = {r["name"].removeprefix("planned: "): told(r["value"], r["unit"]) for r in rows if r["bar"] is None and r["peer"].startswith("published")}  # fmt: skip
    assert len(found) == 17
    for name, said in found.items():
        assert re.search(rf"^\| {re.escape(name)} \| [^|]+ \| {re.escape(said)} \|$", PAGE, re.MULTILINE), (name, said)


def test_published_rows_are_those_of_the_simulation() -> None:
    """Those that take no time; the others are made by the same command."""
    rows = json.loads((ROOT / "benchmarks" / "results" / "plan_check.json").read_text())
    kept = {r["name"].removeprefix("planned: "): r["value"] for r in rows}
    for row in (*nemo(), *syncs()):
        assert kept[row.name] == pytest.approx(row.predicted, rel=1e-6), row.name


def test_a_long_row_on_one_card_and_on_eight_is_as_counted() -> None:
    """A layer in full and the inputs of all 28, with no room for more: a row of 32,768 tokens with its prompt of 128."""
    shape = KNOWN["Qwen/Qwen2.5-7B"]
    work = Work(1, 1, Lengths(32640, 32640), 128, 1)
    full, inputs = activation_bytes(shape), 6 * shape.hidden
    want = {
        f"one layer in full ({full / 1e3:.0f} KB a token)": [f"{n * full / 1e9:.2f} GB" for n in (32768, 4096)],
        f"inputs of 28 layers that recompute ({inputs / 1e3:.1f} KB a token": [f"{n * 28 * inputs / 1e9:.2f} GB" for n in (32768, 4096)],
        "all of it, as `doctor` counts": [
            f"{passing(shape, replace(work, divided=n), -1.0)[0]['activations'] / 1e9:.1f} GB" for n in (1, 8)
        ],
    }  # fmt: skip
    for what, cells in want.items():
        line = next((x for x in MANY.splitlines() if x.startswith(f"| {what}")), "")
        assert line.endswith("| " + " | ".join(cells) + " |"), (what, cells)


def test_the_need_of_131072_tokens_is_as_counted() -> None:
    shape, where = KNOWN["Qwen/Qwen2.5-7B"], cluster("8xh100-80gb", 1)
    work = Work(16, 8, Lengths(32736, 130944), 128)
    cards = {n: Site(shape, replace(work, divided=n), where).colocated() for n in (1, 4, 8)}
    alone, eight = (cards[n].memory["card"].total / 1e9 for n in (1, 8))
    said = " ".join(MANY.split())
    assert f"131,072 tokens of this model on 8 x H100 need {alone:.0f} GB of a card, and {eight:.1f} of the 76" in said
    assert [p.fits for p in cards.values()] == [False, False, True]
    split = Site(shape, replace(work, divided=4), where)
    assert not any(split.split(t).fits for t in split.splits())


def test_every_option_of_the_page_is_one_of_doctor_or_run() -> None:
    from posttrain.cli import command_parser
    from posttrain.planning.words import OPTIONS

    known = {*command_parser("doctor").names(), *command_parser("run").names(), *OPTIONS}
    known |= {"--nnodes", "--nproc-per-node", "--fit", "--cpu", "--out"}  # of torchrun and of the benchmarks
    assert set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", PAGE)) <= known
