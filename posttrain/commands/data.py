"""examples:
posttrain data my.jsonl
posttrain data my.jsonl --model smollm2 --out my.html      lengths in tokens, and a page
posttrain data my.jsonl --save                             keep it for `posttrain view`
posttrain data pairs.parquet --chosen good --rejected bad  preferences: also lists with scores or ranks, good and bad answers
posttrain data "org/name(subset='main')"                   a data set of the Hugging Face hub
What a run would understand of a data set, without running: columns, rows, the grader, the first prompt, lengths, questions that
come twice.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from posttrain.commands.parser import Parser
from posttrain.core.errors import UserError

_ROWS, _DRAWN = 10_000, 1000  # prompts that are looked at: of a stream, of a task that draws its own


def options(parser: Parser) -> None:
    parser.add_argument("source", metavar="FILE", help="a data file, a folder, a hub id, or a task by name")
    parser.add_argument("--model", metavar="MODEL", help="count in this model's tokens and show its chat template")
    for field in ("question", "answer", "chosen", "rejected"):
        parser.add_argument(f"--{field}", metavar="COLUMN", help=f"the column that holds the {field}")
    parser.add_argument("--sft", action="store_true", help="as supervised fine-tuning would learn from it")
    parser.add_argument("--system", default="", metavar="TEXT", help="a system message for every prompt")
    parser.add_argument("--stream", action="store_true", help="do not load it whole: look at 10,000 rows")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="longest answer, in tokens [64]")
    parser.add_argument("--data", metavar="DIR", help="folder of data sets, for presets")
    parser.add_argument(
        "--out", metavar="PAGE", help="write a page with pictures: .html, or .svg for the picture alone"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON and nothing else")
    parser.add_argument("--save", action="store_true", help="keep the figures beside the runs, for posttrain view")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs, for --save [runs]")


def main(args: argparse.Namespace) -> int:
    from posttrain.environments.preference_survey import sentences
    from posttrain.environments.survey import survey
    from posttrain.runs.told import understood
    from posttrain.view.data_page import findings, page, svg

    if args.out and not args.out.endswith((".html", ".svg")):
        raise UserError(f"--out {args.out}: a page is .html, a picture alone .svg")
    env, kind = environment(args)
    reader = read_by(args.model) if args.model else None
    if reader is not None:
        env = fitted(env, reader, kind, args.max_tokens)
    told = understood(env, reader, kind)
    train, test = rows_of(env)
    found = survey(train, test, reader.count if reader else None, kind)
    if args.json:
        print(json.dumps({"understood": told} | {k: v for k, v in found.items() if k != "bins"}))
    else:
        show(told, found)
    if args.save:
        from posttrain.runs.sheets import save

        twice, leaks = found["duplicates"]["train"], found["contamination"]
        counts = (twice, leaks["word for word"] + leaks["near"])
        said = [line for line, n in zip(findings(found), counts, strict=True) if n]
        told = [*told, *(sentences(found["preferences"]) if "preferences" in found else ())]
        kept = found | {"understood": told, "findings": said}
        command = shlex.join(["posttrain", "data", args.source, *(["--model", args.model] if args.model else [])])
        kept_in = save(args.runs, "data", args.source, args.source, command, kept)
        print(f"kept in {kept_in}; posttrain view shows it", file=sys.stderr)
    if args.out:
        unit = "tokens" if reader else "characters"
        text = (
            page(args.source, told, found, findings(found))
            if args.out.endswith(".html")
            else alone(svg(found["bins"][unit]["prompt"]))
        )
        write(Path(args.out), text)
        if not args.json:
            print(f"wrote {args.out}")
    return 0


def alone(picture: str) -> str:
    """An SVG file of its own."""
    style = "<style>text{font:11px sans-serif;fill:#667085}.bar{fill:#4f6df5}.axis{stroke:#d0d5dd}</style>"
    return picture.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1).replace(">", f">{style}", 1) + "\n"


def write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None


def environment(args: argparse.Namespace) -> tuple[Any, str]:
    """The rows as prompts, and what they are for: pairs, lists or labels where they hold preferences."""
    from posttrain.environments.mapped import with_system_message
    from posttrain.environments.task import pair_task, task

    said = {k: getattr(args, k) for k in ("question", "answer", "chosen", "rejected")}
    stream = args.stream or None
    kind = "pairs" if args.chosen or args.rejected else preferences_in(args.source, args.data, said)
    if kind:
        env = pair_task(args.source, data=args.data, kind=kind, stream=stream, **said)
    else:
        env, kind = task(args.source, data=args.data, stream=stream, **said), "demonstrations" if args.sft else ""
    return (with_system_message(env, args.system) if args.system else env), kind


def preferences_in(source: str, data: str | None, columns: dict[str, str | None]) -> str:
    """The kind of preferences that a file, a hub id or a name holds, by its first rows: pairs, lists, labels; empty for none."""
    from posttrain.core.registry import parse
    from posttrain.environments.feedback import kind_of_source
    from posttrain.environments.hub import hub_splits, is_hub_id
    from posttrain.environments.presets import PREFERRED, preference_set
    from posttrain.environments.task import looks_like_file

    name, own = parse(source) if source.strip().endswith(")") else (source.strip(), {})
    given = {k: str(v) for k, v in (columns | own).items() if v is not None}
    plain = name.removeprefix("data/").replace("-", "_")
    if looks_like_file(name):
        return kind_of_source(name, None, given)
    if plain in PREFERRED:
        return kind_of_source(preference_set(plain, data).source, None, given)
    if is_hub_id(name) and name.partition("/")[0] not in ("school", "data", "rg", "reasoning-gym", "reasoning_gym"):
        return kind_of_source(hub_splits(name, str(own.get("subset", ""))), None, given)
    return ""


def read_by(model: str) -> Any:
    """A model's tokenizer and window, without its weights."""
    from types import SimpleNamespace

    from torch import nn

    from posttrain.policies.language import LanguagePolicy
    from posttrain.policies.load import find_folder, load_tokenizer, read_json

    class Reader(LanguagePolicy):
        def count(self, text: str) -> int:
            return len(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    folder = find_folder(base_of(model))
    shell = nn.Identity()
    shell.config = SimpleNamespace(**read_json(Path(folder) / "config.json"))  # type: ignore[assignment]
    return Reader(shell, load_tokenizer(folder), model)


def base_of(model: str) -> str:
    """The model that a run was trained from, or the model itself."""
    from posttrain.runs.trained import base_model, find_trained

    which = find_trained(model)
    return str(base_model(which)) if which else model


def fitted(env: Any, reader: Any, kind: str, max_tokens: int) -> Any:
    """Without the rows that a run with this model would leave out."""
    from posttrain.core.method import find_method
    from posttrain.core.sampling import Sampling
    from posttrain.environments.conversions import KINDS
    from posttrain.runs.fit import fit

    method = find_method("sft" if kind else "grpo")
    method = method.but(rollout=kind) if kind in KINDS else method
    return fit(env, reader, method, Sampling(max_tokens=max_tokens))


def rows_of(env: Any) -> tuple[list[Any], list[Any]]:
    """The prompts of both splits; of an endless task or a stream the first so many."""
    from posttrain.environments.stream import Stream
    from posttrain.runs.told import sizes

    count = dict(sizes(env)) or {"train": _DRAWN, "test": _DRAWN}
    count["train"] = min(count["train"], _ROWS) if isinstance(env, Stream) else count.get("train", 0)
    train, test = ([env.prompt(i, split) for i in range(count.get(split, 0))] for split in ("train", "test"))
    if isinstance(env, Stream):
        train = list({p.id: p for p in train}.values())  # what comes after a row that is stepped over comes twice
    return train, test


def show(told: list[str], found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from posttrain.environments.preference_survey import sentences
    from posttrain.view.data_page import findings, histogram, pictures

    console = Console(highlight=False)
    for line in told:
        console.print(line, style="yellow" if line.startswith("left out") else None, markup=False, soft_wrap=True)
    rows = [(f"{what}, {unit}", q) for unit, some in found["lengths"].items() for what, q in some.items()]
    table = Table("lengths", *rows[0][1])
    for name, q in rows:
        table.add_row(name, *(f"{v:,}" for v in q.values()))
    console.print(table)
    for caption, some in pictures(found):
        console.print(caption, style="bold")
        console.print("\n".join(histogram(some)), markup=False, soft_wrap=True)
    for line in (*(sentences(found["preferences"]) if "preferences" in found else ()), *findings(found)):
        console.print(line, markup=False, soft_wrap=True)
