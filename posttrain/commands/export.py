"""examples:
  posttrain export grpo-arithmetic --to my-model
  posttrain export grpo-arithmetic --metrics metrics.csv
transformers, vLLM and `posttrain run --model my-model` can load the folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shlex
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser
from posttrain.commands.policy import load_run, run_folder
from posttrain.core.errors import UserError, unknown

FORMATS = ("hf",)
Row = dict[str, Any]


def options(parser: Parser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run by name, or its folder")
    parser.add_argument("--to", metavar="DIR", help="write the weights of the newest checkpoint as a model folder")
    parser.add_argument(
        "--format", default="hf", metavar="TEXT", help="format of the model folder: hf (Hugging Face) [hf]"
    )
    parser.add_argument(
        "--metrics", metavar="FILE", help="write the metrics, one row per step: .csv, .jsonl or .parquet"
    )
    parser.add_argument(
        "--phase", metavar="NAME", help="which phase's weights to use, of a run with several phases [the last]"
    )
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def main(args: argparse.Namespace) -> int:
    if not args.to and not args.metrics:
        raise UserError("say what to export: --to DIR for the model, or --metrics FILE for its curves")
    if args.format not in FORMATS:
        raise unknown("model format", args.format, FORMATS)
    folder = run_folder(args.name, args.runs)
    written: dict[str, Any] = {}
    if args.metrics:
        written["metrics"] = args.metrics
        written["rows"] = export_metrics(folder, Path(args.metrics))
    if args.to:
        export_model(folder, Path(args.to), args.phase)
        written["model"] = args.to
    if args.json:
        print(json.dumps(written))
        return 0
    if args.metrics:
        print(f"{written['rows']} steps written to {args.metrics}")
    if args.to:
        print(f"the model is in {args.to}\n\nnext: posttrain chat --model {shlex.quote(args.to)}")
    else:
        where = "" if args.runs == "runs" else f" --runs {shlex.quote(args.runs)}"
        print(f"\nnext: posttrain export {shlex.quote(args.name)}{where} --to my-model")
    return 0


def export_model(folder: Path, to: Path, phase: str | None = None) -> None:
    """The run's newest weights as a Hugging Face folder; a folder that is not empty is not overwritten."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is there already and is not empty; choose another --to, or remove it")
    from posttrain.policies.load import save_model

    policy, _ = load_run(folder, phase, device="cpu")
    save_model(policy, to)


def export_metrics(folder: Path, file: Path) -> int:
    """One row per step, one column per metric; a cell is empty where a step lacks the metric. Returns the number of rows."""
    write = WRITERS.get(file.suffix)
    if write is None:
        raise UserError(f"cannot tell the format of {file}; let its name end in {', '.join(WRITERS)}")
    from posttrain.runs.run import Run

    with Run.open(folder) as run:
        rows = wide([*run.store.metrics(), *run.store.times()])
    names = sorted({k for row in rows for k in row} - {"phase", "step"})
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, rows, ["phase", "step", *names])
    return len(rows)


def wide(values: list[Row]) -> list[Row]:
    """(phase, step, name, value) rows as one row per step, in the order of the steps; NaN is empty."""
    out: dict[tuple[str, int], Row] = {}
    for v in values:
        row = out.setdefault((v["phase"], v["step"]), {"phase": v["phase"], "step": v["step"]})
        row[v["name"]] = v["value"] if math.isfinite(v["value"]) else None
    return list(out.values())


def write_csv(file: Path, rows: list[Row], columns: list[str]) -> None:
    with open(file, "w", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, columns)
        table.writeheader()
        table.writerows(rows)


def write_jsonl(file: Path, rows: list[Row], columns: list[str]) -> None:
    file.write_text("".join(json.dumps({c: row.get(c) for c in columns}) + "\n" for row in rows), encoding="utf-8")


def write_parquet(file: Path, rows: list[Row], columns: list[str]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError("Parquet needs the package pyarrow: pip install pyarrow, or export to .csv or .jsonl") from None
    pq.write_table(pa.table({c: [row.get(c) for row in rows] for c in columns}), file)


WRITERS = {".csv": write_csv, ".jsonl": write_jsonl, ".parquet": write_parquet}
