"""The other side of file_reward.py: a process that imports a file of the user and calls its reward.

Run as a script, `python -P file_worker.py '[sys.path of the parent]'`. Questions come on stdin and replies go out as
lines of JSON. Whatever the reward prints goes to stderr. Before each call a line says which answer
it is about, so that the parent knows whom to blame when nothing more comes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from posttrain.rewards.runtime.conventions import Call

_GRACE = 5  # seconds after which a process whose parent is gone ends itself, also inside code that never yields


class Reply:
    """Lines of JSON to the parent, written whole whatever thread they come from."""

    def __init__(self, out: BinaryIO) -> None:
        self.out, self.lock = out, threading.Lock()

    def send(self, **line: Any) -> None:
        data = (json.dumps(line) + "\n").encode()
        with self.lock:
            self.out.write(data)
            self.out.flush()


class Progress:
    """Tells the parent which call begins, and with it what came of those before; and winds up the alarm clock."""

    def __init__(self, reply: Reply, timeout: float, single: bool) -> None:
        self.reply, self.timeout, self.single = reply, timeout, single
        self.done: list[tuple[int, Any]] = []

    def began(self, item: int) -> None:
        self.wind()
        done, self.done = self.done, []
        self.reply.send(began=item, ended=done)

    def ended(self, item: int, value: Any) -> None:
        from posttrain.rewards.runtime.outcome import as_number

        self.wind()
        self.done.append((item, plain(as_number(value)) if self.single else None))

    def wind(self) -> None:
        signal.alarm(int(self.timeout) + 1 + _GRACE)


def plain(outcome: Any) -> Any:
    """An outcome for JSON: a number, None, or the fields of a Failure."""
    return outcome if outcome is None or isinstance(outcome, float) else asdict(outcome)


def serve(questions: BinaryIO, reply: Reply) -> None:
    """Import the file, describe the function, then answer until the parent closes the pipe."""
    from posttrain.rewards.runtime.timeout_pool import EventLoop

    asked = json.loads(questions.readline())
    if asked.get("plain"):
        return serve_plain(asked, questions, reply)
    call = load(asked, reply)
    loop = EventLoop()
    while call is not None and (line := questions.readline()):
        score(call, line, loop, reply)


def load(asked: dict[str, Any], reply: Reply) -> Call | None:
    """The reward and how it is called; a mistake in the file is told as a sentence."""
    from posttrain.core.errors import UserError
    from posttrain.core.selfcheck import check_ready
    from posttrain.rewards.runtime.conventions import adapt
    from posttrain.rewards.runtime.file_reward import member

    try:
        found = member(asked["file"], asked["name"])
        if hasattr(found, "score") and not callable(found):
            reply.send(scorer=True)
            return None
        check_ready(found)
        call = adapt(found)
    except UserError as error:
        reply.send(mistake=str(error))
        return None
    reply.send(ready=True, kind=call.kind, asynchronous=call.asynchronous, ids=bool(_IDS & set(call.names)))
    return call


def serve_plain(asked: dict[str, Any], questions: BinaryIO, reply: Reply) -> None:
    """A function that is no reward: what it takes, then what it says, until the parent closes the pipe."""
    import inspect

    from posttrain.core.errors import UserError
    from posttrain.core.selfcheck import check_ready
    from posttrain.rewards.runtime.file_reward import member

    try:
        found = member(asked["file"], asked["name"])
        function = callable(found) and not isinstance(found, type)
        if function:
            check_ready(found)
        takes = list(inspect.signature(found).parameters) if function else None
    except (ValueError, TypeError):  # a builtin that does not say what it takes
        takes = None
    except UserError as error:
        return reply.send(mistake=str(error))
    reply.send(ready=True, takes=takes)
    while takes is not None and (line := questions.readline()):
        reply.send(**said(found, line))


def said(function: Any, line: bytes) -> dict[str, Any]:
    """What the function says, or why it could not; the alarm clock ends a process whose parent is gone."""
    from posttrain.rewards.runtime.messages import encoded, unpacked_call
    from posttrain.rewards.runtime.outcome import caught

    args, named, timeout = unpacked_call(line)
    signal.alarm(int(timeout) + 1 + _GRACE)
    try:
        value = function(*args, **named)
        if asyncio.iscoroutine(value):
            value = asyncio.run(value)
        return {"value": encoded(value.tolist() if hasattr(value, "tolist") else value)}
    except (Exception, SystemExit) as error:
        return {"failure": asdict(caught(error))}
    finally:
        signal.alarm(0)


_IDS = {"completion_ids", "completions_ids"}


def score(call: Call, line: bytes, loop: Any, reply: Reply) -> None:
    """One question: the outcomes of all its answers."""
    from posttrain.core.errors import UserError
    from posttrain.rewards.runtime.calls import begin_async, sync_outcomes
    from posttrain.rewards.runtime.messages import unpacked
    from posttrain.rewards.runtime.timeout_pool import Worker

    if loop.blocked or any(isinstance(t, Worker) and t.late for t in threading.enumerate()):
        return reply.send(stuck=True)  # a call that spins would slow down every other
    answers, timeout, workers = unpacked(line)
    watch = Progress(reply, timeout, call.kind == "one")
    watch.wind()
    try:
        if call.asynchronous:
            outcomes = begin_async(loop, call, answers, timeout, workers, watch)()
        else:
            outcomes = sync_outcomes(call, answers, timeout, workers, watch)
    except UserError as error:
        return reply.send(mistake=str(error))
    finally:
        signal.alarm(0)
    reply.send(outcomes=[plain(x) for x in outcomes])


def show_prints() -> None:
    """What Python code prints here goes to stderr, with control characters made visible."""
    from posttrain.rewards.runtime.prints import Visible

    raw = os.fdopen(2, "wb", buffering=0, closefd=False)
    sys.stdout = sys.stderr = Visible(raw, "utf-8", "backslashreplace", write_through=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    sys.path[:] = json.loads(sys.argv[1])
    questions, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a reward prints must not look like a reply, nor mix with --json
    show_prints()
    serve(questions, Reply(out))
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with whatever the reward has started
    os._exit(0)  # threads that were given up, or atexit handlers of the file, do not hold it


if __name__ == "__main__":
    main()
