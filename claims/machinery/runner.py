"""Arms and seeds side by side: every (arm, seed) is a process's job, and its outcome a file, so that a killed check goes on where it was.
Arms of one seed may share a start (claims/machinery/once.py), so those that run side by side are of different seeds where they can be.

WORK/<claim>/<fingerprint>/<arm>-<seed>.json: metrics, what was spent, curves, seconds, machine and commit. Results of other code lie
in other folders and are never mixed in. Folders of several machines merge: they hold different seeds of the same code.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path

from claims.machinery.claim import Claim, file_of, find_claim, registered
from claims.machinery.committed import commit
from claims.machinery.experiment import Outcome, run_one
from claims.machinery.fingerprint import fingerprint
from posttrain.core.errors import UserError

Tell = Callable[[str], None]
WORK = Path("runs") / "checks"


@dataclass(frozen=True)
class Job:
    """One arm of a claim on one seed, and where its outcome goes."""

    id: str
    module: str
    arm: str
    seed: int
    file: Path
    device: str = ""
    commit: str = ""


def folder_of(c: Claim, work: Path) -> Path:
    return work / c.id / fingerprint(file_of(c))


def file_name(arm: str, seed: int) -> str:
    return f"{''.join(x if x.isalnum() else '_' for x in arm)}-{seed}.json"


def jobs_of(c: Claim, seeds: Sequence[int], work: Path, device: str = "") -> list[Job]:
    """Every arm and seed, seed by seed."""
    module = file_of(c).removesuffix(".py").replace("/", ".")
    folder, mark = folder_of(c, work), commit()
    return [
        Job(c.id, module, arm, seed, folder / file_name(arm, seed), device, mark) for seed in seeds for arm in c.arms
    ]


def outcomes(c: Claim, seeds: Sequence[int], work: Path) -> list[Outcome]:
    """Those that are finished."""
    found = [job.file for job in jobs_of(c, seeds, work) if job.file.is_file()]
    return [Outcome(**json.loads(file.read_text())) for file in found]


def run_jobs(jobs: Sequence[Job], side_by_side: int = 1, tell: Tell | None = None) -> dict[str, str]:
    """Those that are not finished yet, as many seeds at a time as run side by side. A claim one of whose runs fails is given up, the others go on; returns why, by claim."""
    left = in_turn([job for job in jobs if not job.file.is_file()], side_by_side)
    say, began, failed = tell or (lambda line: None), time.monotonic(), dict[str, str]()
    if len(left) < len(jobs):
        say(f"{len(jobs) - len(left)} of {len(jobs)} runs are there from before")
    for n, (job, made) in enumerate(_done(left, side_by_side), start=1):
        there = len(jobs) - len(left) + n
        if isinstance(made, Exception):
            if job.id not in failed:
                failed[job.id] = f"{job.arm}, seed {job.seed}: {made}"
                say(f"{there}/{len(jobs)} {job.id}: failed, its other runs are left out: {failed[job.id]}")
            continue
        spent = time.monotonic() - began
        eta = spent / n * (len(left) - n)
        say(
            f"{there}/{len(jobs)} {job.id}: {job.arm}, seed {job.seed}, {made:.1f} s; {spent:.0f} s so far, {eta:.0f} s left"
        )
    return failed


def in_turn(jobs: Sequence[Job], side_by_side: int) -> list[Job]:
    """Claim by claim, a few seeds at a time, arm by arm: neighbours are of different seeds, and do not wait for one start."""
    ids = list(dict.fromkeys(job.id for job in jobs))
    arms = {id: list(dict.fromkeys(job.arm for job in jobs if job.id == id)) for id in ids}
    seeds = {id: list(dict.fromkeys(job.seed for job in jobs if job.id == id)) for id in ids}

    def place(job: Job) -> tuple[int, int, int, int]:
        at = seeds[job.id].index(job.seed)
        return ids.index(job.id), at // max(side_by_side, 1), arms[job.id].index(job.arm), at

    return sorted(jobs, key=place)


def _done(jobs: Sequence[Job], side_by_side: int) -> Iterator[tuple[Job, float | Exception]]:
    """Jobs as they end, with their seconds or what went wrong; after a failure no further one of that claim is begun."""
    gone: set[str] = set()
    if side_by_side <= 1 or len(jobs) <= 1:
        for job in jobs:
            made = _GIVEN_UP if job.id in gone else _tried(job)
            gone |= {job.id} if isinstance(made, Exception) else set()
            yield job, made
        return
    with ProcessPoolExecutor(min(side_by_side, len(jobs)), get_context("spawn"), _begin) as pool:
        running = {pool.submit(_tried, job): job for job in jobs}
        try:
            for future in as_completed(running):
                job = running[future]
                made = _GIVEN_UP if future.cancelled() else future.result()
                if isinstance(made, Exception) and job.id not in gone:
                    gone.add(job.id)
                    for other, its in running.items():
                        if its.id == job.id:
                            other.cancel()
                yield job, made
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class _Fault(Exception):
    """A fault of a claim's own code: its stack trace, which not every exception would survive on the way between processes."""


_GIVEN_UP = _Fault("another run of the claim failed")


def _tried(job: Job) -> float | Exception:
    try:
        return work_on(job)
    except Exception as error:
        return error if isinstance(error, UserError) else _Fault("".join(traceback.format_exception(error)).rstrip())


def _begin() -> None:
    """In a process of its own: one thread, so that as many processes as cores do not fight for them."""
    import torch

    torch.set_num_threads(1)


def work_on(job: Job) -> float:
    """Run the job and keep its outcome, written whole or not at all; returns its seconds."""
    import torch

    from claims.machinery.arms import on_device
    from claims.machinery.once import kept_in
    from posttrain.runs.in_memory import one_thread

    if not registered(job.id):
        import_module(job.module)
    with one_thread(), on_device(job.device), kept_in(job.file.parent / "shared"):
        made = run_one(find_claim(job.id).arms, job.arm, job.seed)
    machine = {
        "device": job.device or "cpu",
        "commit": job.commit,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    job.file.parent.mkdir(parents=True, exist_ok=True)
    part = job.file.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(asdict(replace(made, machine=machine))))
    os.replace(part, job.file)
    return made.seconds


def merge(c: Claim, folder: Path, work: Path, tell: Tell | None = None) -> int:
    """Copy the outcomes of this claim and this code from another work folder, wherever in it they lie; returns how many were new."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder} to merge; give the work folder of another machine")
    here, new = folder_of(c, work), 0
    for file in sorted(folder.glob(f"**/{c.id}/{here.name}/*.json")):
        if not (here / file.name).is_file():
            here.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, here / file.name)
            new += 1
    others = {p.parent.name for p in folder.glob(f"**/{c.id}/*/*.json")} - {here.name}
    if tell and others:
        tell(f"{c.id}: left out results of other code: {', '.join(sorted(others))}; this is {here.name}")
    return new


def seeds_from(text: str) -> list[int]:
    """0-5 or 0,2,7 or 0-3,8."""
    try:
        out = []
        for piece in text.split(","):
            low, _, high = piece.partition("-")
            out += list(range(int(low), int(high or low) + 1))
        return out
    except ValueError:
        raise UserError(f"--seeds is {text!r}; give numbers and ranges: 0-5 or 0,2,7") from None
