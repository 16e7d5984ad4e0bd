"""A step of DPO and of packed SFT as `posttrain run` takes it, beside TRL's DPOTrainer (reference precomputed) and SFTTrainer (packing).

python -m benchmarks.preference_speed --trl --out benchmarks/results/preference_speed.json
python -m benchmarks.preference_speed --trl --tiny                                             (CPU, seconds: does it run?)

Both read the same file of rows, make batches of the same tokens and take as many optimiser steps with the same rate and norm. Two processes,
one for each side, measure in turn, each alone on the card; a side that fails loses its own rows only. Seconds are those of whole
steps (reading, batches, update, logging) after the first ones, the median of all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LENGTH, PROMPT = 256, 128  # tokens of a row, and of its prompt; the rest is the answer with its end
WARM = 5  # steps of a round that do not count


@dataclass(frozen=True)
class Work:
    """What is measured: how many rows of how many tokens a step."""

    kind: str  # dpo: pairs; sft: single rows
    rows: int  # pairs, or rows, of a step
    steps: int
    tiny: bool = False
    attention: str = (
        "sdpa"  # of TRL: what transformers gives, or flash (torch's varlen kernel, the one that is used here)
    )
    plain: bool = False  # of ours: every kernel launched by the host, nothing captured
    dtype: str = "masters"  # of TRL: float32 weights under bf16 autocast, or bf16 weights alone (pure)

    @property
    def tokens(self) -> int:
        return self.rows * LENGTH * (2 if self.kind == "dpo" else 1)


BARS = {"dpo": 3.0, "sft": 1.5}
# name -> what is measured on both sides in turn, and variants of TRL that are measured once
CASES = {
    "dpo": (
        Work("dpo", 16, 20),
        [("ours, launched", {"plain": True}), ("trl, bf16 weights, no masters", {"dtype": "pure"})],
    ),
    "sft": (
        Work("sft", 64, 20, attention="flash"),
        [("ours, launched", {"plain": True}), ("trl, sdpa", {"attention": "sdpa", "steps": 8})],
    ),
    "dpo64": (Work("dpo", 64, 15), []),
}


def rows_of(work: Work, folder: Path) -> Path:
    """The file of rows: random digits, which are a token each, so that every row has LENGTH tokens."""
    draw, file = random.Random(0), folder / f"{work.kind}.jsonl"
    count = work.rows * (work.steps + 2) + 200

    def digits(n: int) -> str:
        return "".join(draw.choices("0123456789", k=n))

    with file.open("w") as out:
        for _ in range(count):
            row = {"prompt": digits(PROMPT - 3)}  # what the template writes around it: <|user|>, <|end|>, <|assistant|>
            if work.kind == "dpo":
                row |= {"chosen": digits(LENGTH - PROMPT - 1), "rejected": digits(LENGTH - PROMPT - 1)}
            else:
                row |= {"completion": digits(LENGTH - PROMPT - 1)}
            out.write(json.dumps(row) + "\n")
    return file


class Side:
    """A process that measures one side, asked line by line."""

    def __init__(self, side: str, log: Path) -> None:
        self.name, self.log = side, log
        command = [sys.executable, "-m", f"benchmarks.preference_{'ours' if side == 'launched' else side}"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log.open("w"), text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip

    def ask(self, work: Work, limit: float) -> dict[str, Any]:
        """The answer, or what went wrong."""
        found: dict[str, Any] = {"error": f"no answer within {limit:.0f} s"}
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(asdict(work)) + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, OSError):
            return {"error": f"the process has ended ({self.process.poll()}): {self._end()}"}
        read = threading.Thread(target=lambda: found.update(self._read()), daemon=True)
        read.start()
        read.join(limit)
        if "seconds" in found:
            found.pop("error", None)
        return dict(found)

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                return told
        return {"error": f"the process has ended: {self._end()}"}

    def _end(self) -> str:
        return self.log.read_text()[-1500:]

    def close(self) -> None:
        self.process.kill()


def answering(measure: Any) -> None:
    """What a side does: a line of JSON for each line that is asked."""
    with os.fdopen(os.dup(1), "w") as told:
        os.dup2(2, 1)  # whatever else is printed goes to the log
        for line in sys.stdin:
            try:
                made = measure(Work(**json.loads(line)))
            except BaseException as error:
                import traceback

                traceback.print_exc()
                made = {"error": f"{type(error).__name__}: {error}"[:600]}
            told.write(json.dumps(made) + "\n")
            told.flush()


def timed(ticks: list[float]) -> list[float]:
    return [b - a for a, b in zip(ticks, ticks[1:], strict=False)]


class Session:
    """All that is asked within the time that there is."""

    def __init__(self, sides: dict[str, Side], budget: float, began: float) -> None:
        self.sides, self.budget, self.began = sides, budget, began
        self.found: dict[str, dict[str, list[dict[str, Any]]]] = {}

    @property
    def left(self) -> float:
        return self.budget - (time.perf_counter() - self.began)

    def warm(self, works: list[Work]) -> None:
        """Imports and kernels of both sides at the same time; nothing here counts."""

        def all_of(side: Side) -> None:
            for work in works:
                got = side.ask(
                    Work(**{**asdict(work), "steps": 3, "plain": side.name == "launched"}), max(self.left, 1.0)
                )
                print(f"  warm {side.name} {work.kind}: {got.get('error') or got['seconds']}", flush=True)

        threads = [threading.Thread(target=all_of, args=(side,)) for side in self.sides.values()]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def ask(self, name: str, side: str, work: Work) -> None:
        seen = self.found.setdefault(name, {}).setdefault(side, [])
        took = max((x.get("took", 0.0) for x in seen), default=2.0)
        process = "launched" if side == "ours, launched" else side.split(",")[0]
        if process not in self.sides or self.left < 1.2 * took:
            return
        began = time.perf_counter()
        got = self.sides[process].ask(work, max(self.left, 1.0))
        seen.append(got | {"took": time.perf_counter() - began})
        counted = got.get("seconds", [])[WARM:] or got.get("seconds", [])[1:]
        told = (
            got.get("error")
            or f"{1000 * statistics.median(counted):.1f} ms/step, peak {got.get('peak_gib', 0):.2f} GiB"
        )
        print(f"{name:6} {side:32} {told}  ({seen[-1]['took']:.1f} s, {self.left:.0f} s left)", flush=True)


def median_of(got: list[dict[str, Any]]) -> float | None:
    counted = [x for one in got for x in (one.get("seconds", [])[WARM:] or one.get("seconds", [])[1:])]
    return statistics.median(counted) if counted else None


def row_of(name: str, work: Work, found: dict[str, list[dict[str, Any]]], about: dict[str, Any]) -> dict[str, Any]:
    value = median_of(found.get("ours", []))
    peers = {
        side: x for side, got in found.items() if not side.startswith("ours") and (x := median_of(got)) is not None
    }
    same = {
        side: x for side, x in peers.items() if "no masters" not in side
    }  # another policy of dtypes is told, and does not count
    peer = min(same.values()) if same else None
    bar = BARS[work.kind]
    ratio = peer / value if peer and value else None
    what = (
        f"{work.rows} pairs of 2 x {LENGTH} tokens"
        if work.kind == "dpo"
        else f"{work.rows} rows of {LENGTH} tokens, packed"
    )
    peak = {side: max((x.get("peak_gib", 0.0) for x in got), default=None) for side, got in found.items()}
    logits = work.tokens * (49152 if not work.tiny else 512) * 4 / 2**30
    return {"name": f"step of {work.kind.upper()}, SmolLM2-135M shape, {what}", "value": value, "unit": "s", "peer": "TRL, the fastest of its ways",
            "peer_value": peer, "ratio": ratio, "bar": f">= {bar}x", "met": None if ratio is None else ratio >= bar, "peers": peers, "peak_gib": peak,
            "all_logits_fp32_gib": logits, "tokens": work.tokens, "rounds": found, "work": asdict(work), **about}  # fmt: skip


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl", action="store_true", help="measure TRL too")
    parser.add_argument("--tiny", action="store_true", help="a tiny shape: whether everything runs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="dpo,sft,dpo64")
    parser.add_argument("--budget", type=float, default=85.0, help="seconds after which nothing new is begun")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    cases: dict[str, tuple[Work, Any]] = {name: CASES[name] for name in args.cases.split(",")}
    if args.tiny:
        small = {
            "dpo": Work("dpo", 2, 4, True),
            "sft": Work("sft", 16, 4, True, "flash"),
            "dpo64": Work("dpo", 4, 3, True),
        }
        cases = {
            name: (small[name], [(w, o | {"steps": 3} if "steps" in o else o) for w, o in cases[name][1]])
            for name in cases
        }
    logs = Path(os.environ.get("OUT") or tempfile.mkdtemp())
    sides = {
        side: Side(side, logs / f"{side}.log")
        for side in (["ours", "launched", "trl"] if args.trl else ["ours", "launched"])
    }
    session = Session(sides, args.budget, began)
    try:
        session.warm([work for work, _ in cases.values()])
        rows: list[dict[str, Any]] = []
        for k in range(args.rounds):
            for name, (work, _) in cases.items():
                for side in ("ours", "trl"):
                    session.ask(name, side if side == "ours" else f"trl, {work.attention}", work)
            if k == 0:
                for name, (work, others) in cases.items():
                    for what, changes in others:
                        session.ask(name, what, Work(**{**asdict(work), **changes}))
            rows = told(cases, session, args.out)
        for row in rows:
            ratio = f"{row['ratio']:.2f}x" if row["ratio"] else "-"
            print(
                f"{row['name']}: {row['value']} s, TRL {row['peers']}, {ratio} (bar {row['bar']}), peak {row['peak_gib']}",
                flush=True,
            )
    finally:
        for one in sides.values():
            one.close()


def told(cases: dict[str, Any], session: Session, out: Path | None) -> list[dict[str, Any]]:
    """The rows so far, written at once: a call that is cut off keeps them."""
    about = {"versions": next((x["versions"] for f in session.found.values() for got in f.values() for x in got if "versions" in x), ""),
             "hardware": next((x["hardware"] for f in session.found.values() for got in f.values() for x in got if "hardware" in x), ""),
             "python": platform.python_version(), "command": "python -m benchmarks.preference_speed --trl", "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    rows = [row_of(name, work, session.found.get(name, {}), about) for name, (work, _) in cases.items()]
    if out:
        out.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


if __name__ == "__main__":
    main()
