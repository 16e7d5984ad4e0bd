"""docs/scale.md says what the code says."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from benchmarks.plan_curves import plans, table
from tests.cli.conftest import call

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text()


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


def test_every_option_of_the_page_is_one_of_doctor_or_run() -> None:
    from posttrain.cli import command_parser
    from posttrain.planning.words import OPTIONS

    known = {*command_parser("doctor").names(), *command_parser("run").names(), *OPTIONS}
    known |= {"--nnodes", "--nproc-per-node", "--fit", "--cpu", "--out"}  # of torchrun and of the benchmarks
    assert set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", PAGE)) <= known
