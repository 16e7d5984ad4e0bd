"""Checkpoints: folders of safetensors and JSON, either complete or absent.

A checkpoint is written under a temporary name, flushed to the disk and renamed, so a kill at any moment leaves either
the old state or the new one. The JSON has the hash of every file and of itself, so damage is found on loading. Nothing here
unpickles, so loading runs no code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.runs.tables import WRITERS, Tables, intact, own_tables, read_table, size_of, whole_tables, write_table

Share = tuple[int, int] | None  # a process and how many there are
FORMAT = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Damaged(Exception):
    """A checkpoint that is not intact; the message says which file and why."""


@dataclass
class Checkpoint:
    """What was saved after a step."""

    phase: str  # of the plan
    step: int  # the last one that is included
    tables: Tables  # tensors by name, one safetensors file per table
    state: dict[str, Any]  # everything else, as JSON (tensors in it are moved to a table)
    rounded: dict[str, str] = field(default_factory=dict)  # weights not written: name -> dtype of its rounded master


def name_of(phase: str, step: int) -> str:
    return f"{phase}-{step:06d}"


def listing(folder: Path, phase: str) -> list[tuple[int, Path]]:
    """The phase's checkpoints, newest first; temporaries and other phases are not among them."""
    found = []
    for path in folder.glob("*-*") if folder.exists() else ():
        head, _, tail = path.name.rpartition("-")
        if head == phase and tail.isdigit():
            found.append((int(tail), path))
    return sorted(found, reverse=True)


def write(folder: Path, ck: Checkpoint) -> Path:
    """Write to a temporary folder, flush, rename; an earlier (damaged) checkpoint of the same name is replaced."""
    return finish_writing(folder, begin_writing(folder, ck), ck)


def begin_writing(folder: Path, ck: Checkpoint) -> Path:
    """The temporary folder of a checkpoint, empty."""
    temporary = folder / f".tmp-{name_of(ck.phase, ck.step)}"
    with disk_errors(folder, size_of(ck.tables), temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    return temporary


def finish_writing(folder: Path, temporary: Path, ck: Checkpoint, there: dict[str, Any] | None = None) -> Path:
    """The tables and the state into the temporary folder, and its name; there: files that are in it already (rows of other processes), with
    their sizes and hashes."""
    target = folder / name_of(ck.phase, ck.step)
    with disk_errors(folder, size_of(ck.tables), temporary):
        state, tables = detach(ck.state, ck.tables)
        names = [f"{t}.safetensors" for t in tables]
        with ThreadPoolExecutor(WRITERS, "write") as pool:  # a full disk comes out of the first that met it
            facts_of = list(pool.map(lambda name, table: write_table(temporary / name, table), names, tables.values()))
        files = dict(zip(names, facts_of, strict=True)) | (there or {})
        facts = {"format": FORMAT, "phase": ck.phase, "step": ck.step, "rounded": ck.rounded}
        body = facts | {"files": files, "state": state}
        _write_flushed(temporary / "state.json", json.dumps({"sha256": _digest(body), "body": body}))
        flush_folder(temporary)
        if target.exists():
            discard(target)
        os.rename(temporary, target)
        flush_folder(folder)
    return target


def read(path: Path, share: Share = None, hashed: bool = True) -> Checkpoint:
    """The checkpoint, every file checked against its hash; Damaged says what is wrong. share: of tensors in rows only those of one process.
    hashed=False: another process has just found the hashes right, and N processes need not read all files N times."""
    try:
        outer = json.loads((path / "state.json").read_text())
        body = outer["body"]
        if outer["sha256"] != _digest(body):
            raise Damaged("state.json is not what was written")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(f"state.json cannot be read ({type(error).__name__})") from None
    if body["format"] > FORMAT:
        raise UserError(f"{path} has format {body['format']}, this version reads up to {FORMAT}; upgrade posttrain")
    files = {file: _checked(path / file, want, hashed) for file, want in body["files"].items()}
    try:
        tables = own_tables(files, *share) if share else whole_tables({f: read_table(at) for f, at in files.items()})
    except (OSError, SafetensorError) as error:
        raise Damaged(f"{path.name} cannot be read ({type(error).__name__})") from None
    state, rounded = attach(body["state"], tables.pop("state", {})), body.get("rounded", {})
    for name, dtype in rounded.items():
        tables["weights"][name] = tables["masters"][name].to(getattr(torch, dtype))
    return Checkpoint(body["phase"], body["step"], tables, state, rounded)


def newest(
    folder: Path, phase: str, warn: Callable[[str], None] | None = None, share: Share = None
) -> Checkpoint | None:
    """The newest intact checkpoint of a phase, or None; damaged ones are reported and skipped."""
    listed = listing(folder, phase)
    for _, path in listed:
        try:
            return read(path, share)
        except Damaged as damage:
            (warn or _stderr)(f"checkpoint {path.name} is damaged and was passed over: {damage}")
    if listed:
        raise UserError(
            f"all {len(listed)} checkpoints of phase {phase!r} in {folder} are damaged; "
            "start over with --fresh, or use another --name"
        )
    return None


def prune(folder: Path, phase: str, step: int, keep: int) -> None:
    """Keep the newest `keep` up to `step`; later ones are damaged (they were skipped when the run resumed) and are deleted."""
    older = [path for at, path in listing(folder, phase) if at <= step]
    later = [path for at, path in listing(folder, phase) if at > step]
    for path in [*older[keep:], *later]:
        discard(path)


def discard(path: Path) -> None:
    """Delete a checkpoint: rename it first, then delete its files, so that a partial one is never found."""
    trash = path.with_name(f".old-{path.name}")
    shutil.rmtree(trash, ignore_errors=True)
    os.rename(path, trash)
    shutil.rmtree(trash, ignore_errors=True)


def sweep(*folders: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in [path for folder in folders for head in (".tmp-*", ".old-*") for path in folder.glob(head)]:
        shutil.rmtree(path, ignore_errors=True)


# ---- tables and state


def _checked(path: Path, want: dict[str, Any], hashed: bool) -> Path:
    try:
        size = path.stat().st_size
        if size != want["bytes"]:
            raise Damaged(f"{path.name} has {size} bytes, {want['bytes']} were written")
        if hashed and not intact(path, want):
            raise Damaged(f"{path.name} is not what was written")
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read ({type(error).__name__})") from None
    return path


def detach(state: Any, tables: Tables) -> tuple[Any, Tables]:
    """State with its tensors moved into a table of their own; a value that JSON would change silently is an error."""
    moved: dict[str, Tensor] = {}

    def walk(x: Any, where: str) -> Any:
        if isinstance(x, Tensor):
            moved[where] = x
            return {"$tensor": where}
        if isinstance(x, dict):
            if odd := [k for k in x if not isinstance(k, str)]:
                raise TypeError(f"{where} has the key {odd[0]!r}; a state_dict that is saved has keys of type str only")
            return {k: walk(v, f"{where}.{k}") for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return [walk(v, f"{where}.{i}") for i, v in enumerate(x)]
        if x is None or isinstance(x, (str, bool, int, float)):
            return x
        raise TypeError(f"{where} is a {type(x).__name__}; a state_dict holds numbers, text, lists, dicts and tensors")

    plain = walk(state, "state")
    return plain, {**tables, "state": moved} if moved else tables


def attach(state: Any, moved: dict[str, Tensor]) -> Any:
    """The inverse of `detach`; tuples come back as lists."""
    if isinstance(state, dict):
        if set(state) == {"$tensor"}:
            return moved[state["$tensor"]]
        return {k: attach(v, moved) for k, v in state.items()}
    return [attach(v, moved) for v in state] if isinstance(state, list) else state


# ---- the disk


def write_atomic(path: Path, text: str) -> None:
    """Replace a file atomically: after a crash it is either the old one or the new one."""
    temporary = path.with_name(f".tmp-{path.name}")
    with disk_errors(path.parent, len(text), temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_flushed(temporary, text)
        os.replace(temporary, path)
        flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """fsync of a folder: the names in it survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def disk_errors(folder: Path, needed: int, temporary: Path | None = None) -> Iterator[None]:
    """A full or read-only disk as one sentence; the temporary is removed, what was saved before stays."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True) if temporary.is_dir() else _unlink(temporary)
        raise disk_error(error, folder, needed) from error


def disk_error(error: Exception, folder: Path, needed: int) -> Exception:
    """The sentence for a disk error; any other error is returned as it is."""
    number = error.errno if isinstance(error, OSError) else None
    if inside := re.search(r"\(os error (\d+)\)", str(error)):
        number = int(inside[1])  # safetensors reports the system's error as text
    if number in FULL:
        wanted = f"about {_size(needed)} were to be written" if needed else "nothing more can be written"
        return UserError(
            f"the disk is full: {wanted} to {folder}, {_size(free_space(folder))} are free. "
            "What was saved before is whole; make room and give the same command again to go on from there"
        )
    if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        reason = os.strerror(number)
        return UserError(f"cannot write to {folder} ({reason}); make it writable or run where you may write")
    return error


def free_space(folder: Path) -> int:
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def _unlink(path: Path) -> None:
    with suppress(OSError):  # a folder that cannot be written has nothing to remove
        path.unlink(missing_ok=True)


def _write_flushed(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _stderr(line: str) -> None:
    print(f"warning: {line}", file=sys.stderr)
