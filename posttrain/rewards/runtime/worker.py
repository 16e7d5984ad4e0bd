"""Grading in another process, so that a time-out is hard: it works from any thread, and inside code that never yields.

A worker is a Python script that answers each line of JSON on its stdin with one on its stdout. When an answer is late
the process is killed and the next question starts a new one. Nothing but JSON crosses the pipe.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, AnyStr

_START = 60.0  # seconds for imports, which are not the answer's fault


class Worker:
    """One process of a script, started at the first question."""

    def __init__(self, script: Path) -> None:
        self.script = script
        self.process: subprocess.Popen[str] | None = None
        self.lines: queue.Queue[str] = queue.Queue()

    def ask(self, question: dict[str, Any], timeout: float) -> Any:
        """The script's answer; TimeoutError (and a dead process) when it is late, RuntimeError when it failed."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        process = self.process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps({**question, "timeout": timeout}) + "\n")
            process.stdin.flush()
        except OSError:
            self.close()
            raise RuntimeError(f"the grader {self.script.stem} died") from None
        reply = json.loads(self.read(timeout, f"no answer within {timeout:g} s"))
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def start(self) -> None:
        """Start the process and wait until it has said that it is ready."""
        # -P keeps the script's own folder off sys.path: a neighbour called math.py must not become `math`
        command = [sys.executable, "-P", str(self.script)]
        self.lines = queue.Queue()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
        )
        threading.Thread(target=pump, args=(self.process.stdout, self.lines, ""), daemon=True).start()
        self.read(_START, f"the grader {self.script.stem} did not start")

    def read(self, timeout: float, late: str) -> str:
        """The next line; a late or closed pipe ends the process."""
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            self.close()
            raise TimeoutError(late) from None
        if not line:
            self.close()
            raise RuntimeError(f"the grader {self.script.stem} died")
        return line

    def close(self) -> None:
        """Kill the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            self.process = None


def pump(pipe: IO[AnyStr], lines: queue.Queue[AnyStr], end: AnyStr) -> None:
    """Every line of a process's pipe into a queue, and `end` where it ends."""
    try:
        for line in pipe:
            lines.put(line)
    except ValueError:  # closed while reading
        pass
    lines.put(end)


class Pool:
    """Up to `size` workers of one script; a thread borrows one for each question."""

    def __init__(self, script: Path, size: int) -> None:
        self.owner = os.getpid()
        self.free: queue.LifoQueue[Worker] = queue.LifoQueue()
        self.workers = [Worker(script) for _ in range(size)]
        for worker in reversed(self.workers):
            self.free.put(worker)
        atexit.register(self.close)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """A worker of the pool, for exclusive use."""
        worker = self.free.get()
        try:
            yield worker
        finally:
            self.free.put(worker)

    def close(self) -> None:
        """Kill every process; a fork of the owner must not, they are not its own."""
        if os.getpid() == self.owner:
            for worker in self.workers:
                worker.close()
