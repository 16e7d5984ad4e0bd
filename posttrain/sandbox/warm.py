"""A warm Python interpreter that is forked into fresh namespaces for each program: several times faster than a fresh sandbox.

The interpreter lives in an outer sandbox. Each program has a process, a user, a mount, a process and an IPC namespace, a
folder and limits of its own, and a filter that forbids other processes and other programs (see _zygote.py). It sees no other program,
and answers only through the descriptors that were made for it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

from posttrain.core.errors import UserError
from posttrain.sandbox.bubblewrap import STARTED, as_nobody, driver, filled, job, pipe, surroundings
from posttrain.sandbox.host import tool
from posttrain.sandbox.languages import FOLDER, python
from posttrain.sandbox.running import Ending, Handle, Running
from posttrain.sandbox.seccomp import supported
from posttrain.sandbox.syscalls import NUMBERS
from posttrain.sandbox.types import USUAL, Finished, Limits, Program, SandboxBroken

_START = 30.0  # seconds for the interpreter and its imports


class Warm:
    """Python programs, each in a fork of one interpreter; it is started at the first program and ends with this process."""

    def __init__(self, packages: tuple[str, ...] = ()) -> None:
        self.packages = packages
        self.lock = threading.Lock()
        self.control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.owner = 0

    def run(self, program: Program, limits: Limits = USUAL) -> Finished:
        """What comes of a program."""
        return self.talk(program, limits, "run").finish()

    def talk(self, program: Program, limits: Limits = USUAL, mode: str = "calls") -> Running:
        """A program that answers calls (or, in the mode "tests", asks them; in the mode "run", is left alone)."""
        if program.language != "python":
            raise UserError(f"a warm sandbox runs Python programs; for {program.language} use Bubblewrap()")
        for attempt in (1, 2):
            try:
                running = Running(self.order(program, limits), limits)
                running.start(job(program, limits, mode, self.packages), STARTED)
                return running
            except SandboxBroken:  # before the program began: where the interpreter has died, a new one takes the order
                if attempt == 2 or not self.died():
                    raise
        raise AssertionError("unreachable")

    def order(self, program: Program, limits: Limits) -> Handle:
        """A new fork, with the inner ends of pipes that nobody else has."""
        opened: list[int] = []
        link, inner_link = socket.socketpair()
        status, inner_status = socket.socketpair()
        told = json.dumps(limits.seconds + _START).encode()
        try:
            out, out_inside = pipe(opened)
            err, err_inside = pipe(opened)
            stdin = filled(program.stdin, opened, seal=True)
            given = [stdin, out_inside, err_inside, inner_link.fileno(), inner_status.fileno()]
            try:
                socket.send_fds(self.started(), [told], given)
            except OSError as error:
                raise SandboxBroken(f"the warm interpreter of the sandbox takes no orders: {error}") from None
            opened.remove(out)
            opened.remove(err)
        finally:
            inner_link.close()
            inner_status.close()
            for fd in opened:
                os.close(fd)
        return Handle(link, out, err, status.fileno(), lambda: hang_up(status), lambda: ending(status))

    def started(self) -> socket.socket:
        """The socket on which the interpreter takes orders; a fork of this process starts its own."""
        with self.lock:
            if (
                self.control is not None
                and self.process is not None
                and self.owner == os.getpid()
                and self.process.poll() is not None
            ):
                self.control.close()
                self.control = None
            if self.control is None or self.owner != os.getpid():
                self.control, self.process = start(self.packages)
                self.owner = os.getpid()
            return self.control

    def died(self) -> bool:
        """Whether the interpreter has ended, or does so now."""
        try:
            return self.process is None or self.process.wait(1.0) is not None
        except subprocess.TimeoutExpired:
            return False

    def close(self) -> None:
        """End the interpreter, and with it every program."""
        with self.lock:
            if self.control is not None and self.process is not None and self.owner == os.getpid():
                self.control.close()
                self.process.kill()
                self.process.wait()
            self.control = self.process = None


def start(packages: tuple[str, ...]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """The interpreter in its outer sandbox, ready for orders. It ends when this process does: its control socket closes."""
    inside = python()
    clone = NUMBERS[supported()]["clone"]
    control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    text = f"{driver()}\n{Path(__file__).with_name('_zygote.py').read_text()}\nmain({other.fileno()}, {clone})"
    text = "from __future__ import annotations\n" + text.replace("from __future__ import annotations\n", "")
    with other:
        process = subprocess.Popen(
            [*as_nobody(), tool("bwrap"), *surroundings(inside.reads, packages),
             "--proc", "/proc", "--dir", FOLDER, "--remount-ro", "/", "--chdir", "/", "--",
             *inside.command, "-c", text],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={}, cwd="/", start_new_session=True,
            pass_fds=(other.fileno(),),
        )  # fmt: skip
    control.settimeout(_START)
    try:
        if control.recv(16) != b"ready":
            raise OSError("the interpreter ended")
    except OSError as error:
        process.kill()
        said = (process.communicate()[1] or b"").decode("utf-8", "replace").strip()
        raise SandboxBroken(f"the sandbox did not start: {said[-400:] or error}") from None
    assert process.stderr is not None
    process.stderr.close()
    control.settimeout(None)
    return control, process


def hang_up(status: socket.socket) -> None:
    """The word to the interpreter that a program shall end."""
    with suppress(OSError):
        status.shutdown(socket.SHUT_WR)


def ending(status: socket.socket) -> Ending:
    """What the interpreter told; one that is gone took its programs with it."""
    with status:
        status.settimeout(_START)
        try:
            told = status.recv(4096)
        except OSError:
            told = b""
    if not told:
        return Ending(None, 9)
    code, cpu = json.loads(told)
    return Ending(None if code < 0 else code, max(-code, 0), cpu)
