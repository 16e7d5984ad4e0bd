"""examples:
  posttrain export grpo-arithmetic --to my-model
  posttrain export my-rm --to my-reward-model                 a reward model, for sequence classification
  posttrain export my-lora --to my-adapter --format peft      the adapters alone; without it they are merged
  posttrain export grpo-arithmetic --to model.gguf            for llama.cpp
  posttrain export grpo-arithmetic --push-to-hub me/my-model
  posttrain export path/to/adapter --to merged                an adapter of PEFT, added to its base
  posttrain export grpo-arithmetic --metrics metrics.csv
transformers, vLLM and `posttrain run --model my-model` can load the folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import shlex
import tempfile
from pathlib import Path
from typing import Any

from posttrain import __version__
from posttrain.commands.hub import check_repo, push
from posttrain.commands.parser import Parser
from posttrain.commands.policy import reward_model_folder, run_folder
from posttrain.core.errors import UserError, unknown

FORMATS = ("hf", "peft", "gguf")
Row = dict[str, Any]


def options(parser: Parser) -> None:
    parser.add_argument("name", metavar="RUN", help="a run by name, or its folder; or any model, as for --model")
    parser.add_argument(
        "--to", metavar="DIR", help="write the weights of the newest checkpoint: a folder, or FILE.gguf"
    )
    parser.add_argument(
        "--format", metavar="TEXT", help="hf (Hugging Face), peft (adapters alone) or gguf [hf; gguf for FILE.gguf]"
    )
    parser.add_argument(
        "--gguf-type", default="", metavar="TEXT", help="weights in GGUF: f32, f16, bf16 or q8_0 [as trained]"
    )
    parser.add_argument(
        "--metrics", metavar="FILE", help="write the metrics, one row per step: .csv, .jsonl or .parquet"
    )
    parser.add_argument(
        "--phase", metavar="NAME", help="which phase's weights to use, of a run with several phases [the last]"
    )
    parser.add_argument("--push-to-hub", metavar="ORG/NAME", help="upload the folder to the Hugging Face hub")
    parser.add_argument("--private", action="store_true", help="with --push-to-hub: a private repository")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")


def main(args: argparse.Namespace) -> int:
    if not args.to and not args.metrics and not args.push_to_hub:
        raise UserError(
            "say what to export: --to DIR for the model, --push-to-hub ORG/NAME, or --metrics FILE for its curves"
        )
    kind = format_of(args)
    if args.push_to_hub:
        check_repo(args.push_to_hub)
    written: dict[str, Any] = {}
    if args.metrics:
        written["metrics"] = args.metrics
        written["rows"] = export_metrics(run_folder(args.name, args.runs), Path(args.metrics))
    if args.to:
        written["model"] = args.to
        written["notes"] = export_model(args, Path(args.to), kind)
        if args.push_to_hub:
            written["url"] = push(Path(args.to), args.push_to_hub, args.private)
    elif args.push_to_hub:
        with tempfile.TemporaryDirectory() as folder:
            written["notes"] = export_model(args, Path(folder) / "model", kind)
            written["url"] = push(Path(folder) / "model", args.push_to_hub, args.private)
    tell(args, written, kind)
    return 0


def format_of(args: argparse.Namespace) -> str:
    file = bool(args.to and args.to.endswith(".gguf"))
    kind = args.format or ("gguf" if file else "hf")
    if kind not in FORMATS:
        raise unknown("model format", kind, FORMATS)
    if args.gguf_type and kind != "gguf":
        raise UserError("--gguf-type is of GGUF; add --format gguf")
    if file and (kind != "gguf" or args.push_to_hub):
        raise UserError(f"--to {args.to} is a file of GGUF; name a folder for --format {kind} or to push it")
    return str(kind)


def tell(args: argparse.Namespace, written: dict[str, Any], kind: str) -> None:
    if args.json:
        print(json.dumps(written))
        return
    if args.metrics:
        print(f"{written['rows']} steps written to {args.metrics}")
    for note in written.get("notes", ()):
        print(f"note: {note}")
    if "url" in written:
        print(f"the model is at {written['url']}")
    where = "" if args.runs == "runs" else f" --runs {shlex.quote(args.runs)}"
    if not args.to:
        print("" if "url" in written else f"\nnext: posttrain export {shlex.quote(args.name)}{where} --to my-model")
        return
    to = shlex.quote(args.to)
    reward = (Path(args.to) / "config.json").is_file() and reward_model_folder(args.to, args.runs)
    then = f"posttrain run grpo --reward {to}" if reward else f"posttrain chat --model {to}"
    then = "open it with llama.cpp, Ollama or LM Studio" if kind == "gguf" else then
    print(f"the model is in {args.to}\n\nnext: {then}")


def export_model(args: argparse.Namespace, to: Path, kind: str) -> list[str]:
    """The newest weights in one of the formats, with a model card; what is there already is not overwritten."""
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is there already and is not empty; choose another --to, or remove it")
    from posttrain.runs.card import model_card

    policy, settings, summary = source(args)
    notes: list[str] = []
    shown = kind
    if policy.score is not None:
        if kind != "hf":
            raise UserError(
                f"a reward model is exported whole, for sequence classification; leave --format {kind} away"
            )
        from posttrain.policies.reward_folder import save_reward_model

        shown, notes = "reward", save_reward_model(policy, to)
    elif kind == "peft":
        from posttrain.policies.peft_folder import save_adapter

        save_adapter(policy, to, base_name(settings))
        policy.tokenizer.save_pretrained(to)
    elif kind == "gguf":
        export_gguf(args, policy, settings, to)
    else:
        from posttrain.policies.load import save_model

        save_model(policy, to)
    notes += asked_for(args)
    if to.is_dir():
        where, made = args.push_to_hub or to.name, f"made with posttrain {__version__}"
        (to / "README.md").write_text(model_card(settings, summary, shown, where, [*notes, made]), encoding="utf-8")
    return notes


def asked_for(args: argparse.Namespace) -> list[str]:
    """What must be written into prompts of a policy that was trained to be told what is wanted: a folder cannot say it."""
    from posttrain.core.conditioning import example
    from posttrain.runs.run import Run
    from posttrain.runs.trained import conditioning, find_trained

    which = find_trained(args.name, args.runs, args.phase or "")
    if which is None:
        return []
    with Run.open(which.folder) as run:
        how = conditioning(run)
    if how is None:
        return []
    first = example(how)
    return [
        "this model is told what is wanted in its prompt, which its chat template does not write: "
        f"{first['role']}: {first['content']!r}"
    ]


def source(args: argparse.Namespace) -> tuple[Any, dict[str, Any], dict[str, Any] | None]:
    """The policy, the settings it was trained with, and the summary of its run."""
    from posttrain.policies.load import NAMED, load_model
    from posttrain.runs.build import load_policy
    from posttrain.runs.run import Run
    from posttrain.runs.saved import load_reward_model, scores
    from posttrain.runs.trained import find_trained, load_trained

    which = find_trained(args.name, args.runs, args.phase or "")
    if which is None and (Path(args.name).is_dir() or args.name in NAMED):
        if args.phase:
            raise UserError(f"--phase is of a run; {args.name} is a model")
        if reward_model_folder(args.name, args.runs):
            raise UserError(f"{args.name} is a reward model's folder already")
        return load_model(args.name, "cpu"), {"model": args.name}, None
    if which is None:
        run_folder(args.name, args.runs)  # an error with the nearest name
        raise UserError(f"{args.name} is neither a run nor a model")
    with Run.open(which.folder) as run:
        settings, summary = run.config, run.read_summary()
        scoring = bool(args.phase and args.phase in run.store.phases() and scores(run, args.phase))
    if scoring or (not args.phase and reward_model_folder(args.name, args.runs)):
        return load_reward_model(which.folder, "cpu", args.phase or "", which.at), settings, summary
    return load_trained(which, load_policy, "cpu")[0], settings, summary


def base_name(settings: dict[str, Any]) -> str:
    """The base of an adapter as peft finds it: a hub id, or the whole path of a folder."""
    from posttrain.policies.load import NAMED, find_folder
    from posttrain.policies.peft_folder import base_of

    base = str(settings["model"])
    if settings.get("base") not in (None, "", base) or settings.get("merge_adapter"):
        raise UserError(
            f"its adapters belong to the weights of {settings.get('adapter') or base} after training, which are no model by "
            "themselves; export it merged: leave --format peft away"
        )
    base = base_of(base)
    return str(Path(find_folder(base)).resolve()) if base in NAMED or Path(base).is_dir() else base


def export_gguf(args: argparse.Namespace, policy: Any, settings: dict[str, Any], to: Path) -> None:
    from posttrain.policies.gguf_file import write_gguf
    from posttrain.runs.card import licence_of

    licence = licence_of(str(settings.get("base") or settings["model"]))
    about = {"name": str(settings.get("name") or policy.name)} | ({"license": licence} if licence else {})
    write_gguf(policy, to if to.suffix == ".gguf" else to / "model.gguf", args.gguf_type, about)


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
