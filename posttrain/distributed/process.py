"""A worker in a process of its own on this machine: a fresh interpreter, a pipe, a deadline."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from posttrain.distributed.pool import Died

_SCRIPT = Path(__file__).with_name("worker.py")
_START = 600.0  # seconds to import torch and load a model


class Process:
    """One worker process; `ask` starts nothing: the pool does."""

    def __init__(self, setup: bytes, index: int) -> None:
        self.setup, self.index = setup, index
        self.popen: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None
        self.late = False
        self.ended = False
        self.lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        return self.popen.pid if self.popen else None

    @property
    def life(self) -> Any:
        """The process that there is now."""
        return self.popen

    def start(self) -> bytes:
        if self.popen is not None and self.popen.poll() is None:
            return b"="
        with self.lock:
            if self.ended:
                raise Died("was not started: the run is over")
            self.pipe = self._spawn()
        return self.ask(self.setup, _START)

    def _spawn(self) -> Connection:
        mine, theirs = socket.socketpair()
        # -P keeps the script's own folder off sys.path
        command = [sys.executable, "-P", str(_SCRIPT), str(theirs.fileno()), str(self.index), json.dumps(sys.path)]
        with theirs:
            alone = {
                k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
            }
            self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[theirs.fileno()], env=alone)
        weakref.finalize(self, _kill, self.popen)  # also when Python ends
        return Connection(mine.detach())

    def ask(self, message: bytes, timeout: float) -> bytes:
        assert self.pipe is not None and self.popen is not None
        self.late = False
        alarm = threading.Timer(timeout, self._hung)
        alarm.daemon = True
        alarm.start()
        try:
            self.pipe.send_bytes(message)
            return self.pipe.recv_bytes()
        except (EOFError, OSError):  # a kill ends both directions
            code = self._reaped()  # so that the next start makes another
            raise Died(f"said nothing for {timeout:g} s" if self.late else _ended(code)) from None
        finally:
            alarm.cancel()

    def _hung(self) -> None:
        self.late = True
        if self.popen is not None:
            self.popen.kill()

    def _reaped(self) -> int:
        """The exit code; a process that closed its pipe without ending is ended."""
        assert self.popen is not None
        try:
            return self.popen.wait(5.0)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            return self.popen.wait()

    def kill(self) -> None:
        with self.lock:
            self.ended = True
            if self.popen is not None:
                _kill(self.popen)


def _kill(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    popen.wait()
    if popen.stdin is not None:
        with suppress(OSError):
            popen.stdin.close()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "was killed (SIGKILL: by somebody, or because the memory is full)"
    with suppress(ValueError):
        return f"died of {signal.Signals(-code).name}"
    return f"died of signal {-code}"
