"""A fresh sandbox for each program, by bubblewrap: namespaces, an own root, limits and a seccomp filter.

setpriv leaves the host's root before anything else (a sandbox of the host's root could write kernel settings), prlimit sets
the limits that are inherited, and bwrap starts with an empty environment, since its own stays readable from inside.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.sandbox import cgroups, seccomp
from posttrain.sandbox.languages import ENDINGS, FOLDER, Start, python, shell
from posttrain.sandbox.running import Ending, Handle, Running
from posttrain.sandbox.types import USUAL, Finished, Limits, Program

_HERE = Path(__file__).parent
_SEALS = 0x2 | 0x4 | 0x8  # no shrinking, no growing, no writing
STARTED = (7).to_bytes(4, "big") + b"started"  # a frame of _inside.py
_FIRST_UID = 60900  # where root looks for a user that nobody is


@dataclass(frozen=True)
class Bubblewrap:
    """Each program in a sandbox of its own that is thrown away with it."""

    packages: tuple[str, ...] = ()  # folders with Python packages that programs may import, read-only

    def run(self, program: Program, limits: Limits = USUAL) -> Finished:
        """What comes of a program."""
        if program.language != "python":
            return self._shell(program, limits)
        return self._python(program, limits, "run").finish()

    def talk(self, program: Program, limits: Limits = USUAL, mode: str = "calls") -> Running:
        """A Python program that answers calls (or, in the mode "tests", asks them)."""
        if program.language != "python":
            raise UserError(
                f"only Python programs answer calls; this one is in {program.language}: give it stdin instead"
            )
        return self._python(program, limits, mode)

    def _python(self, program: Program, limits: Limits, mode: str) -> Running:
        inside = python(box_uid())
        link, other = socket.socketpair()
        with other:
            fd = other.fileno()
            text = f"{driver()}\nperform({fd}, begin({fd}))"
            start = Start((*inside.command, "-c", text), (*inside.reads, *self.packages), False)
            handle = launch(start, limits, link, program.stdin, {fd: fd})
        running = Running(handle, limits)
        running.start(framed(job(program, limits.processes, mode, self.packages)), STARTED)
        return running

    def _shell(self, program: Program, limits: Limits) -> Finished:
        start = shell(program.language)
        group = cgroups.make(limits, program.language)
        try:
            files = {
                **program.files,
                f"main.{ENDINGS[program.language]}": program.source.encode(),
                ".stdin": program.stdin,
            }
            link, other = socket.socketpair()
            with other:
                handle = launch(start, limits, link, other.fileno(), {}, files, group)
            running = Running(handle, limits)
            running.start(b"", b"started")
            return running.finish()
        finally:
            group.remove()


def job(program: Program, threads: int, mode: str, packages: tuple[str, ...] = ()) -> bytes:
    """What _inside.py is told."""
    files = {name: content.hex() for name, content in program.files.items()}
    told = {"source": program.source, "files": files, "mode": mode, "threads": threads, "packages": packages}
    return json.dumps(told).encode()


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@cache
def driver() -> str:
    """The text that runs in a Python sandbox before the program: values.py and _inside.py."""
    whole = "".join((_HERE / name).read_text() for name in ("values.py", "_inside.py"))
    return "from __future__ import annotations\n" + whole.replace("from __future__ import annotations\n", "")


@cache
def box_uid() -> int:
    """The user under whom sandboxes run: oneself, or for root somebody who has no account."""
    if os.getuid() != 0 or _contained(Path("/proc/self/uid_map").read_text()):
        return os.getuid()
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return next(uid for uid in range(_FIRST_UID, 65534) if uid not in taken)


def _contained(uid_map: str) -> bool:
    """Whether this root is another user outside of its namespace, and has no user to become: `0 1000 1`."""
    lines = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    return not any(first <= _FIRST_UID < first + n for first, _, n in lines) and all(
        outer for first, outer, _ in lines if first == 0
    )


@cache
def tool(name: str) -> str:
    """The path of a program that the sandbox is made with."""
    packages = {"bwrap": "bubblewrap", "setpriv": "util-linux", "prlimit": "util-linux"}
    found = shutil.which(name)
    if found is None:
        raise UserError(
            f"programs of a model run only in a sandbox, which needs {name}, and it is not installed; type: apt-get install "
            f"{packages[name]} (or dnf, pacman, apk with the same name)"
        )
    return found


def command(start: Start, limits: Limits, files: dict[str, int], filter_fd: int) -> list[str]:
    """setpriv, prlimit, bwrap and the program, in this order; `files` go from descriptors into the program's folder."""
    uid = str(box_uid())
    memory = [] if start.forks else [f"--as={limits.memory}"]  # a cgroup counts what processes have together
    flags = [
        "--unshare-all",
        "--unshare-user",
        "--die-with-parent",
        "--as-pid-1",
        "--new-session",
        "--clearenv",
        "--cap-drop",
        "ALL",
    ]
    return [
        *([tool("setpriv"), "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all"] if box_uid() != os.getuid() else []),
        tool("prlimit"), *memory, f"--cpu={math.ceil(limits.cpu)}", f"--fsize={limits.disk}", f"--nofile={limits.files}", "--core=0",
        "--memlock=0", "--msgqueue=0",
        tool("bwrap"), *flags, *seen(start.reads),
        "--size", str(limits.disk), "--tmpfs", FOLDER, "--symlink", FOLDER[1:], "/tmp",
        *(word for name, fd in files.items() for word in ("--file", str(fd), f"{FOLDER}/{name}")),
        "--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom",
        "--remount-ro", "/", "--chdir", FOLDER, "--hostname", "sandbox",
        "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "HOME", FOLDER, "--setenv", "LANG", "C.UTF-8",
        *(["--seccomp", str(filter_fd)] if filter_fd >= 0 else []), "--", *start.command,
    ]  # fmt: skip


@cache
def seen(reads: tuple[str, ...]) -> list[str]:
    """What of the machine is visible, read-only; packages that were installed beside an interpreter are not."""
    words = []
    for place in dict.fromkeys(reads):
        if os.path.islink(place):
            words += ["--symlink", os.readlink(place), place]
        elif os.path.exists(place):
            words += ["--ro-bind", place, place]
    hidden = [
        str(p)
        for place in reads
        if place.endswith("/lib") and place != "/lib"
        for p in Path(place).glob("python*/site-packages")
    ]
    return [*words, *(word for place in hidden for word in ("--tmpfs", place, "--remount-ro", place))]


def launch(
    start: Start, limits: Limits, link: socket.socket, stdin: bytes | int, keep: dict[int, int],
    files: dict[str, bytes] | None = None, group: cgroups.Cgroup | None = None,
) -> Handle:  # fmt: skip
    """Start the sandbox; the descriptors in `keep` stay open in it, besides stdin, stdout and stderr."""
    opened: list[int] = []
    try:
        out, out_inside = pipe(opened)
        err, err_inside = pipe(opened)
        filter_fd = filled(seccomp.program(fork=start.forks), opened)
        read = filled(stdin, opened, seal=True) if isinstance(stdin, bytes) else stdin
        brought = {name: filled(content, opened) for name, content in (files or {}).items()}
        words = [*(group.joined if group else ()), *command(start, limits, brought, filter_fd)]
        process = subprocess.Popen(
            words, stdin=read, stdout=out_inside, stderr=err_inside, env={}, cwd="/", start_new_session=True,
            pass_fds=(*keep, filter_fd, *brought.values()),
        )  # fmt: skip
        opened.remove(out)
        opened.remove(err)
    finally:
        for fd in opened:
            os.close(fd)
    return Handle(link, out, err, process.kill, ended(process, group))


def ended(process: subprocess.Popen[Any], group: cgroups.Cgroup | None) -> Callable[[], Ending]:
    """How to wait for the process."""

    def wait() -> Ending:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        signal = -code if code < 0 else code - 128 if code > 128 else 0  # bwrap tells a signal as the shell does
        out = group is not None and group.ran_out()
        return Ending(None if signal else code, signal, used.ru_utime + used.ru_stime, out)

    return wait


def pipe(opened: list[int]) -> tuple[int, int]:
    ends = os.pipe()
    opened += ends
    return ends


def filled(data: bytes, opened: list[int], seal: bool = False) -> int:
    """A descriptor to read the data from; with a seal nobody can change it."""
    fd = os.memfd_create("sandbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    opened.append(fd)
    with open(fd, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    if seal:
        fcntl.fcntl(fd, 1033, _SEALS)  # F_ADD_SEALS
    return fd
