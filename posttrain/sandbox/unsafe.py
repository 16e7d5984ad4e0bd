"""Programs without a sandbox, for those who said so: time and memory are limited, nothing else is.

A program may read and delete files, use the network and outlive its run. It is for machines that are thrown away afterwards
and cannot make a sandbox, such as a container without user namespaces that holds nothing of value.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from posttrain.core.errors import UserError
from posttrain.sandbox.bubblewrap import STARTED, driver, ended, filled, framed, job, pipe, tool
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
            handle = _launch(program, limits, link, other.fileno())
        running = Running(handle, limits)
        running.start(framed(job(program, 0, mode)), STARTED)  # a limit on threads would count all of this user's
        return running


def _launch(program: Program, limits: Limits, link: socket.socket, fd: int) -> Handle:
    opened: list[int] = []
    folder = tempfile.TemporaryDirectory(prefix="posttrain-unsafe-")
    try:
        out, out_inside = pipe(opened)
        err, err_inside = pipe(opened)
        process = subprocess.Popen(
            [tool("prlimit"), f"--as={limits.memory}", f"--cpu={math.ceil(limits.cpu)}", f"--fsize={limits.disk}", "--core=0",
             sys.executable, "-I", "-S", "-B", "-c", f"{driver()}\nperform({fd}, begin({fd}))"],
            stdin=filled(program.stdin, opened, seal=True), stdout=out_inside, stderr=err_inside, env={}, cwd=folder.name,
            start_new_session=True, pass_fds=(fd,),
        )  # fmt: skip
        opened.remove(out)
        opened.remove(err)
    finally:
        for one in opened:
            os.close(one)
    wait = ended(process, None)

    def wait_and_clean() -> Ending:
        ending = wait()
        folder.cleanup()
        return ending

    return Handle(link, out, err, process.kill, wait_and_clean)
