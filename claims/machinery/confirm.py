"""Did a change of structure change a number? The first seed of a claim again; where it gives the recorded digits, the record holds.

A record says which code it was made with. After code was moved or renamed the whole experiment need not be repeated to know that
nothing else happened: one seed through all arms, equal to one in the last recorded digit, is written down as `confirmed`, with the code it
was run with and the seed, in a line of its own after the attempt's. A number that differs confirms nothing: the claim needs new seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import date
from typing import Any

from claims.machinery.claim import Claim, claims, file_of, find_claim
from claims.machinery.evidence import attempts, is_waiting
from claims.machinery.experiment import run_arms
from claims.machinery.fingerprint import fingerprint, ground
from claims.machinery.record import append
from claims.machinery.verdict import same_digits, short
from posttrain.runs.in_memory import one_thread


def first_seed(id: str) -> dict[str, dict[str, list[float]]]:
    """Every metric of every arm on the claim's first seed, as records round them."""
    claim = find_claim(id)
    with one_thread():
        made = run_arms(claim.arms, claim.seeds[:1])
    return {o.arm: {m: [short(x)] for m, x in o.metrics.items()} for o in made}


def differing(made: dict[str, Any], found: dict[str, dict[str, list[float]]]) -> list[str]:
    """`arm: metric` wherever the new value is not the recorded one."""
    out = [f"{arm}: {m}" for arm, metrics in found.items() for m, xs in metrics.items()
           if not same_digits(made["arms"].get(arm, {}).get(m, {}).get("values", [math.nan])[0], xs[0])]  # fmt: skip
    return out + [arm for arm in made["arms"] if arm not in found]


def confirm(ids: Sequence[str] = (), jobs: int = 1, write: bool = True) -> Iterator[tuple[str, list[str]]]:
    """(claim, what differs) as each is done; where nothing does, its last attempt is marked as confirmed for the code as it is (write)."""
    chosen: dict[str, Claim] = {c.id: c for c in ([find_claim(id) for id in ids] if ids else claims())}
    marks = {id: (fingerprint(file_of(c)), ground(file_of(c))) for id, c in chosen.items() if not is_waiting(c)}
    with ProcessPoolExecutor(jobs) as pool:
        running = {pool.submit(first_seed, id): id for id in marks}
        for done in as_completed(running):
            id = running[done]
            wrong = differing(attempts(chosen[id])[-1], done.result())
            if write and not wrong:
                mark(chosen[id], *marks[id])
            yield id, wrong


def mark(c: Claim, code: str, under: str) -> None:
    """One more line: the last attempt again, with the code that repeated its first seed."""
    said = {"confirms": attempts(c)[-1]["attempt"], "date": date.today().isoformat(), "seeds": [c.seeds[0]]}
    append(c, said | {"fingerprint": code, "ground": under})
