"""`posttrain check`: run claims and record what came out, shown or not.

A file of attempts is only ever added to. What stands in the way of a better-looking result is refused here: a claim whose file is
not committed as it is (its margins could still be moved), and numbers of seeds that an attempt has used before, unless they are that
attempt again, digit by digit (but for one in the last: kinds of CPU round differently).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from claims.machinery.claim import Claim, claims, file_of, find_claim
from claims.machinery.committed import has_history, must_be_committed, must_have_been_committed
from claims.machinery.evidence import attempts, attempts_file, curves_file, is_earlier, is_waiting
from claims.machinery.experiment import Result, gathered
from claims.machinery.fingerprint import fingerprint, fingerprints, ground, reached
from claims.machinery.runner import WORK, folder_of, jobs_of, merge, outcomes, run_jobs
from claims.machinery.verdict import RULE, same_digits, short, told_of
from posttrain.core.errors import UserError

Tell = Callable[[str], None]
LIMIT = 200_000  # bytes of a claim's file of attempts
CURVES = 2_000_000  # bytes of the curves of one attempt


@dataclass(frozen=True)
class How:
    """How claims are run. seeds: some of the claim's own (partial: nothing is recorded until all are there), or others with
    write=False. merge: add the outcomes of another machine's work folder, and run nothing. folder: record there."""

    write: bool = True
    jobs: int = 1
    device: str = ""
    seeds: tuple[int, ...] | None = None
    work: Path = WORK
    merge: Path | None = None
    folder: Path | None = None
    outdated: bool = False
    tell: Tell | None = None

    def say(self, line: str) -> None:
        if self.tell:
            self.tell(line)


def check(ids: Sequence[str] = (), family: str | None = None, how: How | None = None) -> list[dict[str, Any]]:
    """Run the claims of these ids (or of a family, or all) and record each that is complete; returns their records, and of those
    that could not be run or recorded why not (verdict "failed").

    outdated: only those without a result of the code as it is, ideas and ground.
    """
    how = how or How()
    if ids and family:
        raise UserError(f"give claim ids or a family, not both: got {', '.join(ids)} and {family!r}")
    chosen: list[Claim] = [find_claim(id) for id in ids] if ids else claims(family)
    if how.outdated:
        chosen = [c for c in chosen if is_outdated(c, how.folder)]
    recording = how.write and (how.folder is not None or has_history())
    for c in chosen:
        _permitted(c, how, recording)
    failed: dict[str, str] = {}
    if how.merge:
        for c in chosen:
            how.say(f"{c.id}: {merge(c, how.merge, how.work, how.tell)} new outcomes merged")
    else:
        jobs = [job for c in chosen for job in jobs_of(c, how.seeds or c.seeds, how.work, how.device)]
        failed = run_jobs(jobs, how.jobs, how.tell)
    made = [one for c in chosen if (one := _ended(c, how, recording, failed.get(c.id, "")))]
    if len(chosen) == 1 and made and made[0]["verdict"] == "failed":
        raise UserError(made[0]["error"])
    return made


def _ended(c: Claim, how: How, recording: bool, failed: str) -> dict[str, Any] | None:
    """The record of a claim, or why there is none: what is wrong with one claim does not keep the others from being recorded."""
    try:
        if not failed:
            return _made(c, how, recording)
    except UserError as error:
        failed = str(error)
    return {"id": c.id, "verdict": "failed", "error": failed}


def _permitted(c: Claim, how: How, recording: bool) -> None:
    """What can be refused before anything runs."""
    if how.write and how.seeds and (foreign := set(how.seeds) - set(c.seeds)):
        raise UserError(
            f"{c.id} is recorded on its own seeds {_few(c.seeds)}, got {_few(foreign)}; --no-write tries others"
        )
    if not how.write and is_waiting(c, how.folder) and set(how.seeds or c.seeds) & set(c.seeds):
        raise UserError(
            f"the seeds {_few(c.seeds)} of {c.id} decide, and have not been recorded: a look at them would be an attempt; try others with "
            "--no-write --seeds 100-101"
        )
    if not recording:
        return
    if how.folder is None:
        must_be_committed([file_of(c), *sorted({path for path, _ in reached(file_of(c))} - {file_of(c)})])
    _unused(c, how.folder)


def _unused(c: Claim, folder: Path | None) -> None:
    """An error where the claim would be tried once more on seeds that have been looked at: with other checks, or not the same seeds."""
    made = attempts(c, folder)
    used = {seed for a in made for seed in a["seeds"]}
    if not used & set(c.seeds) or not is_earlier(c, made[-1]):
        return
    free = max(used) + 1
    raise UserError(
        f"{c.id}: seeds {_few(used & set(c.seeds))} were used by an earlier attempt; another margin, check or world is a new attempt "
        f"on seeds not used before, such as seeds=tuple(range({free}, {free + len(c.seeds)}))"
    )


def _made(c: Claim, how: How, recording: bool) -> dict[str, Any] | None:
    """The record of a claim whose outcomes are all there; of others it is said how many are missing."""
    seeds = list(how.seeds or c.seeds)
    wanted = seeds if not how.write else list(c.seeds)  # what is recorded is all of them
    found = outcomes(c, wanted, how.work)
    if len(found) < len(wanted) * len(c.arms):
        how.say(
            f"{c.id}: {len(found)} of {len(wanted) * len(c.arms)} outcomes are in {folder_of(c, how.work)}; nothing is recorded"
        )
        return None
    result = gathered(c, wanted, found)
    made = record(c, result, fingerprint(file_of(c)), ground(file_of(c)))
    if not recording:
        if how.write:
            how.say(
                f"no git history here, so nothing is recorded; where it is: posttrain check {c.id} --merge {how.work}"
            )
        return {"id": c.id} | made
    if how.folder is None:
        for then in sorted({o.machine.get("commit", "") for o in found}):
            must_have_been_committed(file_of(c), then)
    return {"id": c.id} | write_record(c, made, result, how.folder)


def is_outdated(c: Claim, folder: Path | None = None) -> bool:
    """No result, or one of other code."""
    made = (attempts(c, folder) or [{}])[-1]
    return made.get("fingerprint") not in fingerprints(file_of(c)) or made.get("ground") != ground(file_of(c))


def record(c: Claim, result: Result, mark: str, under: str = "") -> dict[str, Any]:
    """Plain values: what an attempt is told by, besides its number and date."""
    spent: dict[str, dict[str, list[float]]] = {}
    for o in result.outcomes:
        for what, n in o.spent.items():
            spent.setdefault(o.arm, {}).setdefault(what, []).append(n)
    machines = [dict(x) for x in dict.fromkeys(tuple(sorted(o.machine.items())) for o in result.outcomes)]
    return {
        "verdict": "shown" if result.shown else "not shown",
        "rule": RULE,
        "level": c.level,
        "checks": [told_of(check, f) for check, f in zip(c.checks, result.findings, strict=True)],
        "shares": [[s.what, s.within, list(s.arms)] for s in c.shares],
        "spent": spent,
        "arms": {arm: {m: _summary(xs) for m, xs in metrics.items()} for arm, metrics in result.values.items()},
        "seeds": result.seeds,
        "seconds": round(result.seconds, 1),
        "fingerprint": mark,
        "ground": under,
        "machines": machines,
        "tried": c.tried,
    }


def write_record(c: Claim, made: dict[str, Any], result: Result, folder: Path | None = None) -> dict[str, Any]:
    """Add an attempt; returns it with its number and date. The same numbers again are no attempt: a line says that they came again."""
    before = attempts(c, folder)
    today = {"date": date.today().isoformat()}
    if before and repeated(before[-1], made):
        again = {"confirms": before[-1]["attempt"], **today, "seeds": made["seeds"]}
        append(c, again | {k: made[k] for k in ("fingerprint", "ground", "machines")}, folder)
        return made | {k: before[-1][k] for k in ("attempt", "date")}
    if used := {seed for a in before for seed in a["seeds"]} & set(made["seeds"]):
        raise UserError(
            f"{c.id}: the numbers of seeds {_few(used)} differ from those recorded, so this is another world: commit the claim with seeds "
            "not used before, and run it again"
        )
    new = {"attempt": len(before) + 1, **today, **made}
    curves = {f"{o.arm}, seed {o.seed}": o.curves for o in result.outcomes if o.curves}
    if curves:
        _write_curves(curves_file(c, new["attempt"], folder), curves)
    append(c, new, folder)
    return new


def append(c: Claim, line: dict[str, Any], folder: Path | None = None) -> None:
    """One more line; those before it are not touched."""
    path = attempts_file(c, folder)
    text = json.dumps(line, ensure_ascii=False) + "\n"
    size = len(text.encode()) + (path.stat().st_size if path.is_file() else 0)
    if size > LIMIT:
        raise UserError(f"{path.name} would hold {size:,} bytes, more than {LIMIT:,}; record fewer values")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def _write_curves(path: Path, curves: dict[str, Any]) -> None:
    inner = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in curves.items())
    if len(inner) > CURVES:
        raise UserError(f"{path.name} would hold {len(inner):,} bytes, more than {CURVES:,}; fewer steps or seeds")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + inner + "\n}\n")


def numbers(made: dict[str, Any]) -> list[Any]:
    """What makes an attempt another one: margins, and every value of every arm. Names, words and the rule of intervals do not."""
    values = [[x["values"] for x in metrics.values()] for metrics in made["arms"].values()]
    return [[c["margin"] for c in made["checks"]], made["seeds"], values]


def repeated(before: dict[str, Any], made: dict[str, Any]) -> bool:
    """Whether an attempt is one that was made before: the same margins and seeds, and the same digits."""
    then, now = numbers(before), numbers(made)
    return then[:2] == now[:2] and alike(then[2], now[2])


def alike(one: Any, other: Any) -> bool:
    """Lists of lists of numbers with the same digits."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return same_digits(one, other)


def _summary(xs: list[float]) -> dict[str, Any]:
    spread = statistics.stdev(xs) if len(xs) > 1 else 0.0
    return {"mean": short(statistics.fmean(xs)), "std": short(spread), "values": [short(x) for x in xs]}


def _few(seeds: Any) -> str:
    some = sorted(seeds)
    return ", ".join(map(str, some[:4])) + (" ..." if len(some) > 4 else "")


__all__ = ["How", "append", "check", "is_outdated", "numbers", "record", "write_record"]
