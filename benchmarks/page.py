"""The page of a large run: how long opening it, its curves, and pages of its answers take, and what a page that is open costs.

python -m benchmarks.page                       # 20,000 steps x 25 answers of 200 tokens: half a million answers
python -m benchmarks.page --steps 400           # 1/50 of it, as the tests do
python -m benchmarks.page --keep /tmp/large     # keep the run, or use the one that is there
python -m benchmarks.page --live 300            # and: a writer for 300 s with a page open and without, in turn
python -m benchmarks.page --out benchmarks/results/page.json --note "a shared machine"

Bars: a run opens in at most 1 s (`open`: the run, its curves and a first page of answers), a page of answers takes at most 100 ms. Milliseconds
are of the API itself, the median of five calls after the first, which is `cold`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sqlite3
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.store import METRICS, groups
from posttrain.core.config import Config, to_dict
from posttrain.page.api import answer
from posttrain.page.app import encoded
from posttrain.page.folder import Folder
from posttrain.runs.store import Store

OPEN_MS, PAGE_MS = 1000.0, 100.0
CPU_PERCENT, WRITER_MS, WAL_MB = 1.0, 1.0, 20.0
NAMES = (
    "reward",
    "length",
    "entropy",
    "kl",
    "grad_norm",
    "loss",
    "truncated",
    "frac_reward_zero_std",
    "logp_gap",
    "clip_fraction",
)


def write(folder: Path, steps: int, answers: int, tokens: int) -> None:
    """A run in folder/large, written by the store that runs use."""
    where = folder / "large"
    where.mkdir(parents=True)
    (where / "config.json").write_text(json.dumps(to_dict(Config(name="large", steps=steps))))
    some = [groups(answers, tokens, 5, k) for k in range(32)]
    with Store(where / "run.sqlite") as store:
        store.cap = 2e9
        store.begin("train", "policy", True, {"right": 1.0})
        for step in range(steps):
            store.log("train", step, METRICS | figures(step), some[step % 32], 1.0)
        store.finish("train")


def figures(step: int) -> dict[str, float]:
    found = {name: (step * (k + 3) % 97) / 97 for k, name in enumerate(NAMES)} | {"tokens": 5000.0}
    found |= {"accuracy": 0.5} if step % 50 == 49 else {}
    return found | {"sampling/seconds": 0.5, "training/seconds": 0.4, "tokens_per_second": 5e3}


def requests(steps: int) -> dict[str, list[tuple[str, dict[str, object]]]]:
    """What a person does -> the requests of the page."""
    middle, one = steps // 2, {"run": "large"}
    phase = {**one, "phase": "train"}
    deep = json.dumps([middle, 0, 0])
    return {
        "runs": [("runs", {})],
        "open": [("run", one), ("metrics", one), ("rollouts", {**phase, "first": 1, "last": 1, "limit": 100}), ("rollouts", {**phase, "first": steps, "last": steps, "limit": 100})],
        "live update": [("metrics", {**one, "after": steps - 1})],
        "answers": [("rollouts", phase)],
        "answers, the middle": [("rollouts", {**phase, "at": deep})],
        "best": [("rollouts", {**phase, "order": "best"})],
        "worst of a step": [("rollouts", {**phase, "order": "worst", "first": middle, "last": middle})],
        "one prompt over time": [("rollouts", {**phase, "prompt": "p7"})],
        "by reward": [("rollouts", {**phase, "low": 0.5, "high": 0.6})],
        "by length that none has": [("rollouts", {**phase, "longest": 3})],
        "by text that none has": [("rollouts", {**phase, "text": "nowhere"})],
        "by component": [("rollouts", {**phase, "component": "right", "component_low": 0.9})],
        "scatter": [("scatter", phase)],
        "a group": [("group", {**phase, "step": steps, "group": 0})],
        "tokens": [("tokens", {**phase, "step": steps, "group": 0, "sample": 0})],
    }  # fmt: skip


def measure(folder: Path, steps: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each, reading and encoding; bytes that are sent."""
    out = {}
    for name, calls in requests(steps).items():
        took, size = [], 0
        for _ in range(6):
            began = time.perf_counter()
            size = sum(len(encoded(answer(Folder(folder), a, {k: str(v) for k, v in p.items()}))) for a, p in calls)
            took.append(1e3 * (time.perf_counter() - began))
        out[name] = {
            "cold_ms": round(took[0], 1),
            "ms": round(statistics.median(took[1:]), 1),
            "kB": round(size / 1e3, 1),
        }
    return out


def missed(found: dict[str, dict[str, float]]) -> list[str]:
    """The bars that were not met, each as a line."""
    bars = {name: OPEN_MS if name in ("open", "runs") else PAGE_MS for name in found}
    return [
        f"{name}: {found[name]['ms']} ms, the bar is {bar:.0f}" for name, bar in bars.items() if found[name]["ms"] > bar
    ]


def live(folder: Path, seconds: float, page: bool) -> dict[str, float]:
    """A writer of a step every half second, alone or with the page's stream and its updates: what a step and the server cost."""
    import urllib.request

    from posttrain.page.server import Page

    where = folder / f"live-{int(page)}-{os.getpid()}"
    where.mkdir()
    (where / "config.json").write_text(json.dumps(to_dict(Config(name="live", steps=int(2 * seconds)))))
    store = Store(where / "run.sqlite", background=True)
    some = [groups(64, 200, 8, k) for k in range(4)]
    store.log("train", 0, METRICS | figures(0), some[0], 1.0)
    store.sync()
    stop = threading.Event()
    served = Page(Folder(folder), port=0).start() if page else None

    def look() -> None:
        """As the page does: an update at most every second, the warnings every eighth."""
        assert served is not None
        stream = urllib.request.urlopen(f"{served.url}events?run={where.name}")
        while (line := stream.readline()) and not stop.is_set():
            if line.startswith(b"data: "):
                steps = json.loads(line[6:])["steps"]
                urllib.request.urlopen(f"{served.url}api/metrics?run={where.name}&after={max(1, steps - 1)}").read()
                if steps % 16 == 0:
                    urllib.request.urlopen(f"{served.url}api/run?run={where.name}").read()
                stop.wait(0.9)

    if served is not None:
        looking = threading.Thread(target=look, daemon=True)
        looking.start()
    took, largest = [], 0
    began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    for step in range(1, int(2 * seconds)):
        at = time.perf_counter()
        store.log("train", step, METRICS | figures(step), some[step % 4], 1.0)
        took.append(time.perf_counter() - at)
        largest = max(largest, (where / "run.sqlite-wal").stat().st_size)
        if step % 20 == 0:
            store.sync()
        time.sleep(max(0.0, began + step / 2 - time.perf_counter()))
    now = resource.getrusage(resource.RUSAGE_SELF)
    share = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / (time.perf_counter() - began)
    stop.set()
    store.log("train", int(2 * seconds), METRICS, [], 1.0)  # wakes whoever waits for a line
    store.close()
    if served is not None:
        looking.join()
        served.stop()
    return {
        "cpu_share": round(share, 4),
        "log_ms": round(1e3 * statistics.median(took), 3),
        "wal_mb": round(largest / 1e6, 1),
    }


def rows(found: dict[str, Any], note: str, command: str) -> list[dict[str, Any]]:
    """What was found beside its bars, as other results are written."""
    pages = {k: v["ms"] for k, v in found["ms"].items() if k not in ("open", "runs")}
    slowest = max(pages, key=lambda k: pages[k])
    size = f"{found['answers']:,} answers"
    made = [
        (f"page: a run of {size} opens", found["ms"]["open"]["ms"], "ms", OPEN_MS),
        (f"page: the slowest request on {size} ({slowest})", pages[slowest], "ms", PAGE_MS),
        (f"page: the next 50 of {size}", pages["answers"], "ms", PAGE_MS),
    ]
    if live_ := found.get("live"):
        with_, without = live_["with"], live_["without"]
        share = round(100 * (with_["cpu_share"] - without["cpu_share"]), 2)
        made += [
            ("page: server and reader of a live run", share, "% of a core", CPU_PERCENT),
            ("page: a writer's step with a page open, more than without", round(with_["log_ms"] - without["log_ms"], 3), "ms", WRITER_MS),
            ("page: the log beside the database with a page open", with_["wal_mb"], "MB", WAL_MB),
        ]  # fmt: skip
    about = {
        "note": note,
        "hardware": f"{os.cpu_count()} CPU cores",
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
    }
    versions = f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}"
    return [
        {
            "name": n,
            "value": v,
            "unit": u,
            "bar": f"at most {bar:g} {u}",
            "met": v <= bar,
            "versions": versions,
            **about,
        }
        for n, v, u, bar in made
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--answers", type=int, default=25)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--keep", type=Path, help="a folder for the run, used again if it is there")
    parser.add_argument("--live", type=float, default=0.0, help="seconds of a writer with a page open, and without")
    parser.add_argument("--out", type=Path, help="a file of results to write")
    parser.add_argument("--note", default="", help="what else to say about the machine")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        if not (folder / "large" / "run.sqlite").exists():
            write(folder, args.steps, args.answers, args.tokens)
        found = measure(folder, args.steps)
        out: dict[str, Any] = {
            "steps": args.steps,
            "answers": args.steps * args.answers,
            "ms": found,
            "missed": missed(found),
        }
        if args.live:
            out["live"] = {
                "without": live(Path(scratch), args.live, False),
                "with": live(Path(scratch), args.live, True),
            }
    if args.out:
        command = f"python -m benchmarks.page --steps {args.steps}" + (f" --live {args.live:g}" if args.live else "")
        args.out.write_text(json.dumps(rows(out, args.note, command), indent=1) + "\n")
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
