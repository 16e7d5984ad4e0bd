"""`posttrain serve` as a child of the page: a free port of this machine, a key that nobody else knows, and its end when the page ends."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

from posttrain.core.errors import UserError
from posttrain.page.chat import Model

SLOTS = 4  # answers at the same time
END_SECONDS = 10.0  # to end before it is killed
_LISTENS = re.compile(r" at http://127\.0\.0\.1:(\d+)/v1; Ctrl-C stops it$")


@contextmanager
def serving(names: Sequence[str], runs: str, tell: Callable[[str], None]) -> Iterator[list[Model]]:
    """The servers of these models, loaded and listening; they end with the block."""
    with ExitStack() as stack:
        begun = [(name, secrets.token_hex(32)) for name in names]
        children = [stack.enter_context(child(name, runs, key)) for name, key in begun]
        yield [Model(n, port(n, c, tell), key) for (n, key), c in zip(begun, children, strict=True)]


@contextmanager
def child(name: str, runs: str, key: str) -> Iterator[subprocess.Popen[str]]:
    """The process; its key goes by its environment, which other users cannot read, unlike a command line."""
    command = [
        sys.executable,
        "-m",
        "posttrain",
        "serve",
        f"--model={name}",
        "--runs",
        runs,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    command += ["--slots", str(SLOTS), "--quiet"]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        env=os.environ | {"POSTTRAIN_API_KEY": key}, preexec_fn=_die_with_parent(),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def port(name: str, process: subprocess.Popen[str], tell: Callable[[str], None]) -> int:
    """Where it listens, once it does; what it says before is passed on, and what it says when it cannot is the error."""
    assert process.stderr is not None
    last = ""
    for line in process.stderr:
        found = _LISTENS.search(line.rstrip("\n"))
        if last:
            tell(last)
        if found:
            threading.Thread(target=_drain, args=(process.stderr,), name="posttrain-chat", daemon=True).start()
            return int(found[1])
        last = line.rstrip("\n")
    raise UserError(f"--chat {name}: {last.removeprefix('error: ') or 'its server ended without a word'}")


def _drain(lines: IO[str]) -> None:
    """A pipe that nobody reads would hold it up."""
    for _ in lines:
        pass


def _die_with_parent() -> Callable[[], object] | None:
    """On Linux the kernel ends the child even where this process is killed; elsewhere a killed page leaves it to be ended by hand."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
