"""A fresh sandbox for each program, by bubblewrap: namespaces, an own root, limits and a seccomp filter.

setpriv leaves the host's root before anything else (a sandbox of the host's root could write kernel settings), and bwrap starts
with an empty environment, since its own stays readable from inside. A Python sandbox sets the limits of its process itself, before
it reads the program (_inside.py); for other languages prlimit does, and a cgroup counts.
"""

from __future__ import annotations

import fcntl
import marshal
import math
import os
import signal
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.sandbox import cgroups, seccomp
from posttrain.sandbox.host import box_uid, tool
from posttrain.sandbox.languages import ENDINGS, FOLDER, Start, python, shell
from posttrain.sandbox.running import Ending, Handle, Running
from posttrain.sandbox.types import USUAL, Finished, Limits, Program, SandboxBroken

_HERE = Path(__file__).parent
_SEALS = 0x2 | 0x4 | 0x8  # no shrinking, no growing, no writing
STARTED = (7).to_bytes(4, "big") + b"started"  # a frame of _inside.py


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
        inside = python()
        link, other = socket.socketpair()
        opened: list[int] = []
        try:
            fd, code = other.fileno(), filled(compiled(inside.command), opened, seal=True)
            text = f"import marshal, posix\nexec(marshal.loads(posix.pread({code}, {1 << 20}, 0)))\nposix.close({code})\nplay({fd})"
            start = Start((*inside.command, "-c", text), inside.reads, False, self.packages)
            handle = launch(start, limits, link, program.stdin, (fd, code))
        finally:
            other.close()
            for one in opened:
                os.close(one)
        running = Running(handle, limits)
        running.start(job(program, limits, mode, self.packages), STARTED)
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
                handle = launch(start, limits, link, other.fileno(), (), files, group)
            running = Running(handle, limits)
            running.start(b"", b"started")
            return running.finish()
        finally:
            group.remove()


def job(program: Program, limits: Limits, mode: str, packages: tuple[str, ...] = (), boxed: bool = True) -> bytes:
    """The frame that _inside.py begins with."""
    told = {
        "source": program.source, "files": {n: bytes(x) for n, x in program.files.items()}, "mode": mode, "packages": inside_names(packages),
        "folder": FOLDER if boxed else "", "disk": limits.disk, "limits": rlimits(limits), "filter": seccomp.program() if boxed else b"",
    }  # fmt: skip
    return framed(marshal.dumps(told, 4))


def rlimits(limits: Limits) -> dict[str, int]:
    """The limits of one process; threads are counted by user namespace, so those of other sandboxes are not."""
    return {
        "RLIMIT_AS": limits.memory, "RLIMIT_CPU": math.ceil(limits.cpu), "RLIMIT_FSIZE": limits.disk, "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.files, "RLIMIT_NPROC": limits.processes,
    }  # fmt: skip


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


@cache
def driver() -> str:
    """The text that runs in a Python sandbox before the program: values.py, _confine.py and _inside.py."""
    whole = "".join((_HERE / name).read_text() for name in ("values.py", "_confine.py", "_inside.py"))
    return "from __future__ import annotations\n" + whole.replace("from __future__ import annotations\n", "")


def as_nobody() -> list[str]:
    """The beginning of a command that leaves the host's root."""
    uid = str(box_uid())
    words = [tool("setpriv"), "--reuid", uid, "--regid", uid, "--clear-groups", "--inh-caps=-all"]
    return words if box_uid() != os.getuid() else []


def surroundings(reads: tuple[str, ...], packages: tuple[str, ...] = ()) -> list[str]:
    """Namespaces of its own (no network, processes, host name), no capability, and what it may read; all before the program's folder."""
    variables = {"PATH": "/usr/bin:/bin", "HOME": FOLDER, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0"}  # as the last time
    return [
        "--unshare-all", "--unshare-user", "--as-pid-1", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox",
        *(word for name, value in variables.items() for word in ("--setenv", name, value)), *seen(reads),
        "--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/urandom", "/dev/urandom",
        *(word for here, there in zip(packages, inside_names(packages), strict=True) for word in ("--ro-bind", here, there)),
        *([] if any(r.startswith("/tmp/") for r in reads) else ["--symlink", FOLDER[1:], "/tmp"]),
    ]  # fmt: skip


def inside_names(packages: tuple[str, ...]) -> list[str]:
    """Where folders of packages are in the sandbox."""
    return [f"/packages/{i}" for i in range(len(packages))]


def command(start: Start, limits: Limits, files: dict[str, int], filters: list[int]) -> list[str]:
    """setpriv, prlimit, bwrap and the program, in this order; `files` go from descriptors into the program's folder."""
    words = [*as_nobody()]
    if start.forks:  # a Python sandbox takes the same steps itself; what processes have together a cgroup counts
        words += [
            tool("prlimit"),
            f"--cpu={math.ceil(limits.cpu)}",
            f"--fsize={limits.disk}",
            f"--nofile={limits.files}",
            "--core=0",
        ]
    words += [tool("bwrap"), "--die-with-parent", *surroundings(start.reads, start.packages)]
    if start.forks:
        words += [
            "--size",
            str(limits.disk),
            "--tmpfs",
            FOLDER,
            *(word for fd in filters for word in ("--seccomp", str(fd))),
        ]
    else:
        words += [
            "--dir",
            FOLDER,
            "--cap-add",
            "CAP_SYS_ADMIN",
        ]  # of its own namespaces, to mount its folder; then it is dropped
    brought = [word for name, fd in files.items() for word in ("--file", str(fd), f"{FOLDER}/{name}")]
    return [*words, *brought, "--remount-ro", "/", "--chdir", FOLDER, "--", *start.command]


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
    start: Start, limits: Limits, link: socket.socket, stdin: bytes | int, keep: tuple[int, ...],
    files: dict[str, bytes] | None = None, group: cgroups.Cgroup | None = None,
) -> Handle:  # fmt: skip
    """Start the sandbox; the descriptors in `keep` stay open in it, besides stdin, stdout and stderr."""
    opened: list[int] = []
    try:
        out, out_inside = pipe(opened)
        err, err_inside = pipe(opened)
        filters = [filled(seccomp.program(fork=True), opened)] if start.forks else []
        read = filled(stdin, opened, seal=True) if isinstance(stdin, bytes) else stdin
        brought = {name: filled(content, opened) for name, content in (files or {}).items()}
        words = [*(group.joined if group else ()), *command(start, limits, brought, filters)]
        process = subprocess.Popen(
            words, stdin=read, stdout=out_inside, stderr=err_inside, env={}, cwd="/", start_new_session=True,
            pass_fds=(*keep, *filters, *brought.values()),
        )  # fmt: skip
        opened.remove(out)
        opened.remove(err)
    finally:
        for fd in opened:
            os.close(fd)
    return handle_of(process, link, out, err, group)


@cache
def compiled(interpreter: tuple[str, ...]) -> bytes:
    """The driver as that interpreter's bytecode: to compile it would take a third of the time of a short program."""
    source = "import marshal, sys; sys.stdout.buffer.write(marshal.dumps(compile(sys.stdin.read(), 'driver', 'exec', optimize=2)))"
    done = subprocess.run([*interpreter, "-c", source], input=driver().encode(), capture_output=True, env={}, cwd="/")
    if done.returncode:
        raise SandboxBroken(f"the sandbox's interpreter does not run: {done.stderr.decode().strip()[-300:]}")
    return done.stdout


def handle_of(
    process: subprocess.Popen[Any], link: socket.socket, out: int, err: int, group: cgroups.Cgroup | None = None
) -> Handle:
    """A process with the outer ends of its pipes."""
    done = os.pidfd_open(process.pid)

    def kill() -> None:  # Popen.kill would take the exit status of a process that has just ended
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(done, signal.SIGKILL)

    def wait() -> Ending:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = code = os.waitstatus_to_exitcode(status)
        os.close(done)
        by = -code if code < 0 else code - 128 if code > 128 else 0  # bwrap tells a signal as the shell does
        ran_out = group is not None and group.ran_out()
        return Ending(None if by else code, by, used.ru_utime + used.ru_stime, ran_out)

    return Handle(link, out, err, done, kill, wait)


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
