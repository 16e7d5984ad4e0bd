"""The worker process of a reward in a file, seen from the training process: asked, listened to, killed, started again."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from posttrain.core.errors import UserError
from posttrain.rewards.runtime.conventions import Answers
from posttrain.rewards.runtime.messages import packed
from posttrain.rewards.runtime.outcome import Failure, Outcome, late
from posttrain.rewards.runtime.worker import pump

_START = 120.0  # seconds for the imports of a file
_GRACE = 2.0  # seconds beyond the time-out before a process that says nothing is killed
_WROTE = "wrote into the pipe over which its process replies"
_SCRIPT = Path(__file__).with_name("file_worker.py")


class Told:
    """What a process said of some answers before it ended or was killed."""

    def __init__(self, finished: dict[int, Outcome] | None = None) -> None:
        self.finished: dict[int, Outcome] = finished or {}
        self.running: list[int] = []
        self.killed: Failure | None = None

    def hear(self, reply: dict[str, Any], single: bool) -> bool:
        """A line of the process; whether it is the last one."""
        if "outcomes" in reply:
            self.finished = {i: outcome(x) for i, x in enumerate(reply["outcomes"])}
            return True
        ended = {i: outcome(x) for i, x in reply["ended"]}
        self.running = [*(i for i in self.running if i not in ended), reply["began"]]
        self.finished |= ended if single else {}
        return False

    def guilty(self, asynchronous: bool) -> list[int]:
        """The answers that a killed process is blamed on: the one it was at; of several threads' none yet, they are asked again
        one by one; of several coroutines' all."""
        return self.running if len(self.running) == 1 or asynchronous else []


class Process:
    """The worker process: started at once, and again after it was killed. A plain function is called with what it takes
    (`file_function.py`), any other is a reward."""

    def __init__(self, file: str, name: str, plain: bool = False) -> None:
        self.file, self.name, self.plain = file, name, plain
        self.takes: list[str] | None = None  # the parameters of a plain function; None: it is none
        self.lock = threading.Lock()
        self.popen: subprocess.Popen[bytes] | None = None
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.kind, self.asynchronous, self.ids, self.is_scorer = "one", False, False, False
        self.end: Any = None
        self.source = _source(file)
        self.start()

    def start(self) -> None:
        """Start it and wait until the file is imported; a UserError where that fails."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-P", str(_SCRIPT), json.dumps([str(p) for p in sys.path])]
        self.popen = subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True)
        self.end = weakref.finalize(self, _kill, self.popen)  # also when Python ends
        self.lines = queue.Queue()
        threading.Thread(target=pump, args=(self.popen.stdout, self.lines, b""), daemon=True).start()
        self.write(json.dumps({"file": self.file, "name": self.name, "plain": self.plain}).encode() + b"\n")
        try:
            reply = self.read(_START)
        except ValueError:
            self.kill()
            raise UserError(f"importing {self.file} {_WROTE}; a reward's file may only define things") from None
        if reply is None:
            code = self.kill()
            what = "did not finish within" if code is None else "ended Python with exit code"
            how = f"{_START:g} s" if code is None else str(code)
            raise UserError(f"importing {self.file} {what} {how}; a reward's file may only define things")
        if "mistake" in reply:
            self.kill()
            raise UserError(reply["mistake"])
        self.is_scorer = bool(reply.get("scorer"))
        self.kind, self.asynchronous = reply.get("kind", "one"), bool(reply.get("asynchronous"))
        self.ids, self.takes = bool(reply.get("ids")), reply.get("takes")

    def restart(self) -> Failure | None:
        """Start it again in the middle of a run; a file that has become unusable fails, and one that changed is said to have."""
        if self.source != (now := _source(self.file)):
            print(f"warning: {self.file} has changed since the run began; its new version is used", file=sys.stderr)
            self.source = now
        try:
            self.start()
        except UserError as error:
            return Failure("raised", str(error))
        return None

    def ask(self, answers: Answers, timeout: float, workers: int) -> Told:
        """Send the answers and listen until all is said, the process ends, or nothing has come for too long."""
        with self.lock:
            if (self.popen is None or self.popen.poll() is not None) and (failed := self.restart()):
                return Told({i: failed for i in range(len(answers.texts))})
            data = packed(answers, self.ids, timeout, workers)
            while True:
                threading.Thread(
                    target=self.write, args=(data,), daemon=True
                ).start()  # one that hangs does not read either
                told = Told()
                if self.listen(told, len(answers.texts), timeout):
                    return told
                self.kill()
                if failed := self.restart():
                    return Told({i: failed for i in range(len(answers.texts))})

    def call(self, question: bytes, timeout: float) -> dict[str, Any]:
        """What a plain function says: {"value": ...} or {"failure": ...}; one that is late or ends Python goes with its process."""
        with self.lock:
            if (self.popen is None or self.popen.poll() is not None) and (failed := self.restart()):
                return {"failure": asdict(failed)}
            threading.Thread(target=self.write, args=(question,), daemon=True).start()
            try:
                if (reply := self.read(timeout)) is not None and reply.keys() & {"value", "failure"}:
                    return reply
                why = _WROTE if reply is not None else ""
            except ValueError:
                why = _WROTE
            code = self.kill()
            if why:
                return {"failure": asdict(Failure("raised", f"{self.name} {why}"))}
            return {"failure": asdict(late(timeout) if code is None else Failure("raised", _ended(self.name, code)))}

    def listen(self, told: Told, n: int, timeout: float) -> bool:
        """What it says, until all is said; False where a late call of an earlier question still runs in it."""
        patience = timeout + _GRACE + 1e-5 * n
        while True:
            try:
                if (reply := self.read(patience)) is None:
                    code = self.kill()
                    self.blame(told, n, late(timeout) if code is None else Failure("raised", _ended(self.name, code)))
                    return True
                if "stuck" in reply:
                    return False
                if "mistake" in reply:
                    raise UserError(reply["mistake"])
                if told.hear(reply, self.kind == "one"):
                    return True
            except (ValueError, TypeError, KeyError):  # not what file_worker.py writes
                self.kill()
                self.blame(told, n, Failure("raised", f"{self.name} {_WROTE}"))
                return True

    def blame(self, told: Told, n: int, why: Failure) -> None:
        """The process is gone: the answers that it was at have failed."""
        told.killed, told.running = why, told.running or list(range(n))[:1]
        if self.kind != "one":
            told.finished = dict.fromkeys(range(n), why)

    def write(self, data: bytes) -> None:
        popen = self.popen
        with suppress(OSError, ValueError):  # it has ended, which reading will tell
            if popen is not None and popen.stdin is not None:
                popen.stdin.write(data)
                popen.stdin.flush()

    def read(self, timeout: float) -> dict[str, Any] | None:
        """The next line; None when none came in time, or the process has ended; a ValueError where it is no reply."""
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            return None
        try:
            reply = json.loads(line) if line else None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(reply, dict | None):
            raise ValueError(f"a {type(reply).__name__}")
        return reply

    def kill(self) -> int | None:
        """End it; the exit code where it had ended by itself, None where it was still running."""
        popen = self.popen
        if popen is None:
            return 0
        try:
            code: int | None = popen.wait(0.05)
        except subprocess.TimeoutExpired:
            code = None
        if self.end is not None:
            self.end()
        self.popen = None
        return code


def _source(file: str) -> bytes:
    return Path(file).read_bytes() if Path(file).is_file() else b""


def _ended(name: str, code: int) -> str:
    return f"{name} ended its process (exit code {code})" if code >= 0 else f"{name} died of signal {-code}"


def outcome(x: Any) -> Outcome:
    """The reverse of file_worker.plain."""
    return Failure(**x) if isinstance(x, dict) else None if x is None else float(x)


def _kill(popen: subprocess.Popen[bytes]) -> None:
    with suppress(OSError):  # nothing of it is left
        os.killpg(popen.pid, signal.SIGKILL)  # with whatever the reward has started
    popen.wait()
    for pipe in (popen.stdin, popen.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:
            pass
