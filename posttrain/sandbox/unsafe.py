"""Programs without a sandbox, for those who said so: time and memory are limited, nothing else is.

A program may read and delete files, use the network and outlive its run. It is for machines that are thrown away afterwards
and cannot make a sandbox, such as a container without user namespaces that holds nothing of value.
"""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace

from posttrain.core.errors import UserError
from posttrain.sandbox.bubblewrap import STARTED, driver, filled, handle_of, job, pipe
from posttrain.sandbox.running import Ending, Handle, Running
from posttrain.sandbox.types import USUAL, Finished, Limits, Program

WARNING = (
    "allow_unsafe_code: programs written by the model run with your rights, unisolated: they can read and delete your files and use "
    "the network"
)


@dataclass(frozen=True)
class Unsafe:
    """Each Python program in a plain process of this user."""

    def run(self, program: Program, limits: Limits = USUAL) -> Finished:
        """What comes of a program."""
        return self.talk(program, limits, "run").finish()

    def talk(self, program: Program, limits: Limits = USUAL, mode: str = "calls") -> Running:
        """The same protocol as in a sandbox."""
        if program.language != "python":
            raise UserError(f"without a sandbox only Python programs are run; this one is in {program.language}")
        link, other = socket.socketpair()
        with other:
            handle = _launch(program, link, other.fileno())
        running = Running(handle, limits)
        running.start(job(program, replace(limits, processes=_many()), mode, boxed=False), STARTED)
        return running


def _many() -> int:
    """The limit on threads as it is: a lower one would count all of this user's processes."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return hard if hard > 0 else 1 << 30


def _launch(program: Program, link: socket.socket, fd: int) -> Handle:
    opened: list[int] = []
    folder = tempfile.TemporaryDirectory(prefix="posttrain-unsafe-")
    try:
        out, out_inside = pipe(opened)
        err, err_inside = pipe(opened)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", f"{driver()}\nperform({fd}, begin({fd}))"],
            stdin=filled(program.stdin, opened, seal=True), stdout=out_inside, stderr=err_inside, env={}, cwd=folder.name,
            start_new_session=True, pass_fds=(fd,),
        )  # fmt: skip
        opened.remove(out)
        opened.remove(err)
    finally:
        for one in opened:
            os.close(one)
    handle = handle_of(process, link, out, err)

    def wait() -> Ending:
        ending = handle.wait()
        folder.cleanup()
        return ending

    return replace(handle, wait=wait)
