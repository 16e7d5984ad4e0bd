"""`python -m tests.fuzz --minutes 10 --seed 0 [--domain NAME]`: every domain in turn, seed after seed, until the time is up."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable

DOMAINS = {"settings": 400, "data": 200, "rewards": 200, "models": 40, "runs": 12, "http": 60}  # tries at a time


def fuzzer(domain: str) -> Callable[[int, int], list[str]]:
    found: Callable[[int, int], list[str]] = getattr(importlib.import_module(f"tests.fuzz.{domain}"), f"fuzz_{domain}")
    return found


def fuzz(minutes: float, seed: int, domains: list[str]) -> tuple[dict[str, int], list[str]]:
    """(tries by domain, failures). Each domain gets the same share of the time; a batch that has begun is finished."""
    tries, failures = dict.fromkeys(domains, 0), []
    for k, domain in enumerate(domains):
        due = time.monotonic() + 60 * minutes / len(domains)
        batch = seed
        while batch == seed or time.monotonic() < due:
            failures += fuzzer(domain)(batch, DOMAINS[domain])
            tries[domain] += DOMAINS[domain]
            batch += 1000
        print(f"{k + 1}/{len(domains)} {domain}: {tries[domain]:,} tries", file=sys.stderr, flush=True)
    return tries, failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--domain", action="append", choices=DOMAINS, help="only this one; may be given again")
    args = parser.parse_args()
    tries, failures = fuzz(args.minutes, args.seed, args.domain or list(DOMAINS))
    for failure in failures:
        print(failure)
    print(
        f"{sum(tries.values()):,} tries, {len(failures)} failures:", ", ".join(f"{d} {n:,}" for d, n in tries.items())
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
