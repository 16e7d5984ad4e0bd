"""A control group that counts the memory and the processes of one sandbox together.

A language that starts processes needs one: a limit on each process is none on all of them. Both kinds of cgroups are
known, the unified one (v2) and one hierarchy per controller (v1). Without the right to make a group there is a refusal.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.sandbox.types import Limits

_MOUNT = Path("/sys/fs/cgroup")
_NEEDED = ("memory", "pids")
_names = itertools.count()

NO_CGROUP = (
    "programs in {language} start processes, which only a memory and pids cgroup can bound, and this user may make none under "
    "{mount}; run as root, or in a scope of one's own (systemd-run --user --scope -p Delegate=yes ...), or use Python programs"
)


def parents(mount: Path = _MOUNT, own: str = "") -> list[Path]:
    """The folders in which a group can be made: one where cgroups are unified, one per controller otherwise; [] for none."""
    own = own or Path("/proc/self/cgroup").read_text()
    places = {
        line.split(":")[1]: line.split(":")[2].strip().lstrip("/") for line in own.splitlines() if line.count(":") >= 2
    }
    here = mount / places.get("", "")
    for place in dict.fromkeys(
        (here, here.parent, mount)
    ):  # a group with processes in it can have none below it that counts
        if _unified(place):
            return [place]
    apart = [mount / name for name in _NEEDED]
    return apart if all(os.access(p / "cgroup.procs", os.W_OK) and os.access(p, os.W_OK) for p in apart) else []


def _unified(place: Path) -> bool:
    try:
        handed_on = (place / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False
    return set(_NEEDED) <= set(handed_on) and os.access(place, os.W_OK) and os.access(place / "cgroup.procs", os.W_OK)


@dataclass(frozen=True)
class Cgroup:
    """The folders of one group."""

    folders: tuple[Path, ...]

    @property
    def joined(self) -> tuple[str, ...]:
        """The beginning of a command that joins the group before it becomes the rest of the command."""
        join = "".join(f"echo $$ > {folder}/cgroup.procs && " for folder in self.folders)
        return ("/bin/sh", "-c", f'{join}exec "$@"', "sh")

    def ran_out(self) -> bool:
        """Whether a process of the group was ended because there was no memory left."""
        for name in ("memory.events", "memory.oom_control"):
            for folder in self.folders:
                with suppress(OSError):
                    if any(w in ("oom_kill", "oom_group_kill") and int(n) for w, n in _pairs(folder / name)):
                        return True
        return False

    def remove(self) -> None:
        """Take it away; what still runs in it is ended."""
        for folder in self.folders:
            for _ in range(200):
                with suppress(OSError):
                    for pid in (folder / "cgroup.procs").read_text().split():
                        os.kill(int(pid), 9)
                    folder.rmdir()
                if not folder.exists():
                    break
                time.sleep(0.005)  # a process takes a moment to be gone


def _pairs(file: Path) -> list[tuple[str, str]]:
    return [(words[0], words[1]) for line in file.read_text().splitlines() if len(words := line.split()) == 2]


def make(limits: Limits, language: str) -> Cgroup:
    """A new group with these limits, or a sentence that says why there can be none."""
    name = f"posttrain-{os.getpid()}-{next(_names)}"
    group = Cgroup(tuple(p / name for p in parents()))
    if not group.folders:
        raise UserError(NO_CGROUP.format(language=language, mount=_MOUNT))
    settings = {
        "memory.max": limits.memory, "memory.swap.max": 0, "memory.limit_in_bytes": limits.memory,
        "memory.memsw.limit_in_bytes": limits.memory, "pids.max": limits.processes,
    }  # fmt: skip
    try:
        for folder in group.folders:
            folder.mkdir()
        for folder, (file, value) in itertools.product(group.folders, settings.items()):
            if (folder / file).exists():
                (folder / file).write_text(str(value))
    except OSError as error:
        group.remove()
        raise UserError(f"{NO_CGROUP.format(language=language, mount=_MOUNT)} ({error})") from None
    return group
