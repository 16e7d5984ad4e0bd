"""Golden digests: every claim on its first seed, to the last digit, so that a change of structure can be shown to change no number.

python -m benchmarks.golden --write golden.json      # before the change
python -m benchmarks.golden --compare golden.json    # after it, on the same machine and versions
"""

from __future__ import annotations

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from claims.machinery.claim import claims, find_claim
from claims.machinery.experiment import run_arms
from posttrain.runs.in_memory import one_thread


def digits(id: str, seeds: int) -> tuple[str, dict[str, dict[str, list[str]]], float]:
    """Every metric of every arm of a claim on its first seeds, as exact hexadecimal floats."""
    claim = find_claim(id)
    began = time.perf_counter()
    with one_thread():
        values = run_arms(claim.arms, claim.seeds[:seeds])
    exact = {arm: {m: [x.hex() for x in xs] for m, xs in metrics.items()} for arm, metrics in values.items()}
    return id, exact, time.perf_counter() - began


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("ids", nargs="*")
    ask.add_argument("--write", type=Path)
    ask.add_argument("--compare", type=Path)
    ask.add_argument("--jobs", type=int, default=2)
    ask.add_argument("--seeds", type=int, default=1)
    asked = ask.parse_args()
    ids = asked.ids or [c.id for c in claims()]
    found, wrong = {}, []
    golden = json.loads(asked.compare.read_text()) if asked.compare else {}
    with ProcessPoolExecutor(asked.jobs) as pool:
        for done in as_completed([pool.submit(digits, id, asked.seeds) for id in ids]):
            id, exact, seconds = done.result()
            found[id] = exact
            same = "" if not golden else "same" if golden.get(id) == exact else "DIFFERENT"
            wrong += [id] if same == "DIFFERENT" else []
            print(f"{id:32} {seconds:6.1f} s  {same}", flush=True)
    if asked.write:
        asked.write.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(found)} differ: {', '.join(sorted(wrong))}")


if __name__ == "__main__":
    main()
