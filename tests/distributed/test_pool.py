"""The pool: a worker that dies or hangs is replaced, its task is given out again, and one that kills every worker is named."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.distributed import process
from posttrain.distributed.pool import DEATHS, Died, Lost, Pool
from posttrain.distributed.process import Process

# a worker of real processes that does what it is told, without torch: it starts in 50 ms
SCRIPT = """
import os, sys, time
from multiprocessing.connection import Connection
pipe = Connection(int(sys.argv[1]))
said = pipe.recv_bytes()
pipe.send_bytes(said if said[:1] in b"!?" else b"=")
while True:
    what = pipe.recv_bytes().decode()
    if what == "hang":
        time.sleep(600)
    if what == "exit":
        os._exit(3)
    if what.startswith("once "):  # dies the first time that anybody is asked
        path = what.removeprefix("once ")
        if not os.path.exists(path):
            open(path, "w").close()
            os.kill(os.getpid(), 9)
    pipe.send_bytes(b"=" + f"{what} by {os.getpid()}".encode())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Pool]]:
    (tmp_path / "worker.py").write_text(SCRIPT)
    monkeypatch.setattr(process, "_SCRIPT", tmp_path / "worker.py")
    pools: list[Pool] = []
    yield pools
    for pool in pools:
        pool.close()


def pool_of(pools: list[Pool], workers: int, setup: bytes = b"=", timeout: float = 30.0, deaths: int = DEATHS) -> Pool:
    pools.append(Pool([Process(setup, i) for i in range(workers)], timeout, deaths))
    return pools[-1]


def test_each_task_is_done_once_by_whoever_is_free(script: list[Pool]) -> None:
    pool = pool_of(script, 2)
    futures = [pool.submit((k,), f"task {k}".encode(), "") for k in range(20)]
    replies = [f.result(30).decode() for f in futures]
    assert [r.split(" by ")[0] for r in replies] == [f"task {k}" for k in range(20)]
    assert {r.split(" by ")[1] for r in replies} <= {str(h.pid) for h in pool.handles}  # type: ignore[attr-defined]


def test_a_task_whose_worker_is_killed_is_given_out_again(
    script: list[Pool], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = pool_of(script, 1)
    reply = pool.submit((0,), f"once {tmp_path / 'died'}".encode(), "shard 1 of step 0").result(30)
    assert reply.startswith(b"once") and pool.replaced == 1
    assert "a worker was killed (SIGKILL" in (told := capsys.readouterr().err) and "shard 1 of step 0" in told


def test_a_worker_that_hangs_is_killed_and_the_third_time_the_task_is_named(script: list[Pool]) -> None:
    pool = pool_of(script, 1, timeout=0.2)
    hung, good = pool.submit((0,), b"hang", "shard 5 of step 2"), pool.submit((1,), b"fine", "")
    with pytest.raises(Lost, match=r"3 workers ended on shard 5 of step 2, the last one said nothing for 0.2 s"):
        hung.result(30)
    assert good.result(30).startswith(b"fine"), "others are served"


def test_an_exit_code_is_told(script: list[Pool]) -> None:
    with pytest.raises(Lost, match="the last one ended with exit code 3"):
        pool_of(script, 1, deaths=1).submit((0,), b"exit", "x").result(30)


def test_one_that_died_with_nothing_to_do_costs_no_task_a_try(script: list[Pool]) -> None:
    pool = pool_of(script, 1, deaths=1)
    pool.submit((0,), b"first", "").result(30)
    popen = pool.handles[0].popen  # type: ignore[attr-defined]
    os.kill(popen.pid, signal.SIGKILL)
    popen.wait()
    assert pool.submit((1,), b"second", "").result(30).startswith(b"second")


def test_what_a_worker_says_against_starting_is_said_to_all_who_wait(script: list[Pool]) -> None:
    pool = pool_of(script, 2, setup=b"!this worker has another posttrain")
    waiting = [pool.submit((k,), b"x", "") for k in range(3)]
    for future in (*waiting, pool.submit((9,), b"late", "")):
        with pytest.raises(UserError, match="this worker has another posttrain"):
            future.result(30)


def test_an_error_in_a_worker_brings_its_trace(script: list[Pool]) -> None:
    with pytest.raises(RuntimeError, match="in a worker:\nTraceback"):
        pool_of(script, 1, setup=b"?Traceback ...").submit((0,), b"x", "").result(30)


class Dying:
    """A worker that never begins."""

    def start(self) -> bytes:
        raise Died("ended with exit code 1")

    def ask(self, message: bytes, timeout: float) -> bytes:
        raise AssertionError("it was never there")

    def kill(self) -> None:
        pass


def test_a_worker_that_never_begins_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"a worker died 3 times before it had begun \(ended with exit code 1\)"):
        Pool([Dying()], 1.0).submit((0,), b"x", "").result(30)


def test_a_machine_that_starts_no_process_is_a_sentence(script: list[Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a thread that ends and a run that waits for ever."""

    def full(*args: object, **kwargs: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process.subprocess, "Popen", full)
    with pytest.raises(
        UserError, match=r"a worker could not be started \(.*temporarily unavailable\); use fewer workers"
    ):
        pool_of(script, 1).submit((0,), b"x", "").result(30)


def test_closing_ends_the_processes_and_frees_who_waits(script: list[Pool]) -> None:
    pool = pool_of(script, 1)
    pool.submit((0,), b"first", "").result(30)
    busy, queued = pool.submit((0,), b"hang", "a"), pool.submit((1,), b"x", "b")
    popen = pool.handles[0].popen  # type: ignore[attr-defined]
    pool.close()
    for future in (busy, queued):
        with pytest.raises(Died):
            future.result(30)
    assert popen.poll() is not None


class Ordered:
    """A worker that waits until it may begin, and notes what it is asked."""

    def __init__(self) -> None:
        self.gate, self.asked = threading.Event(), []  # type: ignore[var-annotated]

    def start(self) -> bytes:
        self.gate.wait(30)
        return b"="

    def ask(self, message: bytes, timeout: float) -> bytes:
        self.asked.append(message)
        return b"="

    def kill(self) -> None:
        pass


def test_earlier_steps_go_first() -> None:
    handle = Ordered()
    pool = Pool([handle], 1.0)
    futures: list[Future[bytes]] = [pool.submit(k, repr(k).encode(), "") for k in [(1, 0, 1), (1, 0, 0), (0, 0, 2)]]
    handle.gate.set()
    [f.result(30) for f in futures]
    assert handle.asked == [b"(0, 0, 2)", b"(1, 0, 0)", b"(1, 0, 1)"]
    pool.close()


def test_a_message_that_cannot_be_made_is_told_to_who_waits(script: list[Pool]) -> None:
    def message() -> bytes:
        raise UserError("the prompts hold a picture")

    pool = pool_of(script, 1)
    with pytest.raises(UserError, match="the prompts hold a picture"):
        pool.submit((0,), message, "").result(30)
    assert pool.submit((1,), b"next", "").result(30).startswith(b"next")


class Flaky(Dying):
    """A worker whose machine comes back at the fourth try, when others have worked all the while."""

    tries = 0

    def __init__(self) -> None:
        self.back = threading.Event()

    def start(self) -> bytes:
        self.tries += 1
        if self.tries <= DEATHS:
            return super().start()
        self.back.set()
        return b"="


def test_a_worker_that_cannot_be_had_is_tried_again_while_others_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pool, "rest", 0.01)
    steady, flaky = Ordered(), Flaky()
    steady.gate.set()
    pool = Pool([steady], 1.0)
    pool.submit((0,), b"x", "").result(30)
    pool.handles.append(flaky)
    thread = threading.Thread(target=pool._serve, args=(flaky,), daemon=True)
    thread.start()
    assert (
        flaky.back.wait(30) and "ended with exit code 1 before it had begun; 1 others go on" in capsys.readouterr().err
    )
    assert pool.broken is None
    pool.close()


class Gone(Ordered):
    """A worker that ends after its first task, and whose place nobody takes."""

    starts = 0

    def start(self) -> bytes:
        self.starts += 1
        if self.starts > 3:  # at first, before the first task, and after it
            raise Died("ended with exit code 1")
        return b"="


def test_a_task_that_nobody_is_left_for_is_told() -> None:
    pool = Pool([Gone()], 1.0)
    pool.submit((0,), b"x", "").result(30)
    with pytest.raises(UserError, match="a worker died 3 times before it had begun"):
        pool.submit((1,), b"y", "").result(30)
