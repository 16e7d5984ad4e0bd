"""Weights from memory to memory: what arrives is what was held, a worker that dies or refuses loses nothing, and a run is the same run."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.distributed import choose, direct, refuse
from posttrain.distributed.direct import Direct, Handed, Taker, moved
from posttrain.distributed.flat import laid, size_of, views
from posttrain.distributed.pool import OK, REFUSED, Died, NotTaken
from posttrain.distributed.process import Process
from posttrain.distributed.versions import Version, sampled
from posttrain.distributed.worker import Worker
from posttrain.runs.wire import pack, unpack
from tests.distributed import small
from tests.distributed.test_workers import Killer, files, learned
from tests.models import tiny
from tests.runs.test_resume import same

__all__ = ["files"]


@pytest.fixture
def held() -> Iterator[Direct]:
    made = Direct("gloo")
    yield made
    made.close()


def version(number: int) -> Version:
    return Version(number, f"/nowhere/{number}", f"digest {number}")


def moved_by(policy: Any, amount: float) -> Any:
    with torch.no_grad():
        for p in policy.parameters():
            p += amount
    return policy


def taken(held: Direct, ticket: dict[str, Any], policy: Any, taker: Taker) -> None:
    sending = held.giving(ticket)
    taker.take(ticket, policy)
    assert sending is not None
    sending.join()


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, sampled(b)[name]) for name, x in sampled(a).items())


def test_tensors_of_all_kinds_lie_where_the_layout_says() -> None:
    table: dict[str, Tensor] = {
        "a": torch.arange(5, dtype=torch.bfloat16),
        "b": torch.tensor(7),
        "c": torch.zeros(0, 3),
        "d": torch.rand(3, 4).double(),
        "e": torch.tensor([True, False]),
    }
    layout = laid(table)
    assert [at for *_, at in layout] == [0, 256, 512, 512, 768] and size_of(layout) == 770 and size_of([]) == 0
    flat = torch.empty(770, dtype=torch.uint8)
    for name, x in views(flat, layout):
        x.copy_(table[name])
    assert all(torch.equal(x, table[name]) and x.dtype == table[name].dtype for name, x in views(flat, layout))


def test_a_worker_gets_the_version_it_asks_for_while_training_goes_on(
    held: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_PIECE", 1000)  # sent in many pieces
    ours, theirs, taker = tiny.policy(), moved_by(tiny.policy(), 1.0), Taker()
    first = tiny.policy()
    held.hold(version(0), ours)
    moved_by(ours, 0.5)
    held.hold(version(1), ours)
    old, new = held.ticket("0.1", "digest 0"), held.ticket("0.1", "digest 1")
    assert old is not None and new is not None and held.ticket("0.1", "digest 2") is None
    taken(held, old, theirs, taker)
    assert equal(theirs, first) and not equal(theirs, ours)
    taken(held, unpack(pack(new)), theirs, taker)  # as it comes over a pipe
    assert equal(theirs, ours)
    assert list(held.groups) == ["0.1"], "one group for each worker, however often it asks"


def test_memory_of_versions_that_nobody_needs_is_used_again(held: Direct) -> None:
    policy = tiny.policy()
    for number in range(4):
        held.hold(version(number), moved_by(policy, 0.1))
        held.forget({number, number - 1})
    assert len(held.slots) == 3 and sorted(s.number for s in held.slots) == [-1, 2, 3]
    assert held.ticket("0.1", "digest 1") is None, "what is in its memory is no version any more"
    held.hold(version(3), moved_by(policy, 0.1))  # the same number again, after a restart: in its own place
    assert sorted(s.number for s in held.slots) == [-1, 2, 3]


def test_of_versions_that_are_alike_the_one_that_stays_is_taken(held: Direct) -> None:
    """A step with no gradient changes nothing, so both have one hash; the older one's memory is soon written to."""
    policy = tiny.policy()
    for number in range(2):
        held.hold(Version(number, "/nowhere", "alike"), policy)
    ticket = held.ticket("0.1", "alike")
    assert ticket is not None and held.slots[ticket["slot"]].number == 1


def test_other_weights_than_the_workers_model_has_are_refused(held: Direct) -> None:
    held.hold(version(0), tiny.policy())
    ticket = held.ticket("0.1", "digest 0")
    assert ticket is not None
    ticket["layout"][0][0] = "model.other"
    with pytest.raises(
        UserError, match=r"of another model than this worker has: \['model\.\w.*must have the same --model"
    ):
        Taker().take(ticket, tiny.policy())


def test_nobody_sends_so_nothing_is_taken(held: Direct, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_JOIN", direct.timedelta(seconds=0.5))
    held.hold(version(0), tiny.policy())
    ticket = held.ticket("0.1", "digest 0")
    assert ticket is not None
    with pytest.raises(NotTaken):
        Taker().take(ticket, tiny.policy())


def test_the_end_of_a_run_waits_for_no_worker_that_never_came(held: Direct) -> None:
    """A thread that is left within a process group ends Python with an abort."""
    held.hold(version(0), tiny.policy())
    ticket = held.ticket("0.1", "digest 0")
    assert ticket is not None
    sending, began = held.giving(ticket), time.monotonic()
    held.close()
    assert sending is not None and not sending.is_alive() and time.monotonic() - began < 4


class Said:
    """A worker that says what it is told to, and keeps what it was asked."""

    def __init__(self, *replies: Any) -> None:
        self.replies, self.asked, self.life = list(replies), [], object()  # type: ignore[var-annotated]

    def start(self) -> bytes:
        return OK

    def ask(self, message: bytes, timeout: float) -> bytes:
        self.asked.append(unpack(message))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return bytes(reply)

    def kill(self) -> None: ...


def test_who_has_a_version_is_not_handed_it_again_and_who_died_is(
    held: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_send", lambda ticket: None)
    held.hold(version(0), tiny.policy())
    said = Said(OK, OK, Died("was killed"), OK)
    worker, message = Handed(said, held, 3), pack({"do": "make", "weights": "digest 0"})
    worker.start()
    for _ in range(2):
        worker.ask(message, 1.0)
    with pytest.raises(Died):
        worker.ask(pack({"do": "make", "weights": "digest 1"}), 1.0)
    said.life = object()
    worker.start()
    worker.ask(message, 1.0)
    tickets = [asked.get("ticket", {}).get("worker") for asked in said.asked]
    assert tickets == ["3.1", None, None, "3.2"], "a version that is not in memory is read from its file"


def test_a_worker_that_cannot_take_them_reads_files(
    held: Direct, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_send", lambda ticket: None)
    held.hold(version(0), tiny.policy())
    said = Said(REFUSED + b"no route to host", OK, OK)
    worker, message = Handed(said, held, 0), pack({"do": "make", "weights": "digest 0"})
    worker.start()
    assert worker.ask(message, 1.0) == OK
    worker.has = ""
    worker.ask(message, 1.0)
    assert ["ticket" in asked for asked in said.asked] == [True, False, False]
    assert "--weights-over gloo: no route to host; they are read from files instead" in capsys.readouterr().err


class Here:
    """A worker in this process that loads weights and makes nothing."""

    def __init__(self) -> None:
        self.worker, self.life = Worker.__new__(Worker), object()
        self.worker.policy, self.worker.taker, self.worker.version, self.worker.number = tiny.policy(), None, "", -1

    def start(self) -> bytes:
        return OK

    def ask(self, message: bytes, timeout: float) -> bytes:
        try:
            self.worker.loaded(unpack(message))
        except NotTaken as error:
            return REFUSED + str(error).encode()
        return OK

    def kill(self) -> None: ...


def asking(number: int) -> bytes:
    return pack({"do": "make", "version": number, "weights": f"digest {number}", "path": "/nowhere"})


def test_a_worker_that_took_newer_weights_midway_still_takes_what_is_sent(
    held: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --max-staleness it finds them in the run's folder, of which the trainer does not know; who sends must not wait for ever."""
    monkeypatch.setattr(direct, "_JOIN", direct.timedelta(seconds=5))
    here, policy = Here(), tiny.policy()
    worker = Handed(here, held, 0)
    worker.start()
    for number in range(3):
        held.hold(version(number), moved_by(policy, 0.1))
        here.worker.version = f"digest {number}" if number == 1 else here.worker.version
        began = time.monotonic()
        assert worker.ask(asking(number), 1.0) == OK and equal(here.worker.policy, policy)
        assert time.monotonic() - began < 4


def test_who_sends_does_not_wait_for_a_worker_that_cannot_take_them(
    held: Direct, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Here()
    worker = Handed(here, held, 0)
    worker.start()
    held.hold(version(0), tiny.policy())
    assert worker.ask(asking(0), 1.0) == OK
    held.hold(version(1), tiny.policy())

    def full(*args: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(direct, "moved", lambda send, flat, other: full() if other == 0 else moved(send, flat, other))
    monkeypatch.setattr(worker, "_plain", lambda *a: OK + b"from its file")
    began = time.monotonic()
    assert worker.ask(asking(1), 1.0) == OK + b"from its file"
    for thread in held.sending:
        thread.join(10)
    assert held.sending and time.monotonic() - began < 10 and not any(t.is_alive() for t in held.sending)
    assert "out of memory; they are read from files instead" in capsys.readouterr().err


def test_the_run_is_the_same_and_a_worker_is_killed(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real processes, real gloo; no file of weights is read by a worker."""
    made: list[Process] = []
    monkeypatch.setattr(choose, "Process", lambda told, i: made.append(Process(told, i)) or made[-1])
    handed: list[str] = []
    plain = Direct._send
    monkeypatch.setattr(Direct, "_send", lambda self, ticket: (handed.append(ticket["worker"]), plain(self, ticket))[1])
    small.start(files, tmp_path / "local", lag=1, steps=4)
    how: dict[str, Any] = {"lag": 1, "sampler": "process", "weights_over": "gloo", "steps": 4}
    small.start(files, tmp_path / "other", (Killer(made),), device="cpu", **how)
    same(learned(tmp_path / "other/small"), learned(tmp_path / "local/small"))
    assert {"0.1", "0.2"} <= set(handed), "the one that was killed was replaced, and handed weights again"
    assert not [t for t in threading.enumerate() if t.name.startswith("weights for")]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"weights_over": "gloo"}, "this process samples itself; add --sampler process, or ray"),
        ({"weights_over": "ipc", "sampler": "process", "device": "cpu"}, "there is no GPU here; use gloo"),
        ({"weights_over": "tcp", "sampler": "process"}, "weights_over is 'tcp'; use 'files', 'ipc', 'nccl' or 'gloo'"),
    ],
)
def test_what_cannot_work_is_said(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        refuse._options(Config(**changes))


@pytest.mark.parametrize(
    ("way", "sampler", "gpus", "told"),
    [
        ("gloo", "process", 1, "it is for CPUs; use nccl or ipc, or add --device cpu"),
        ("ipc", "ray", 8, "only processes of one machine can open its memory"),
        ("nccl", "process", 1, "trainer and workers share one here; use ipc"),
        ("nccl", "process", 2, ""),
        ("nccl on cuda:0", "process", 2, "trainer and workers share one here; use ipc"),
        ("nccl", "ray", 1, ""),
        ("ipc", "process", 1, ""),
    ],
)
def test_what_needs_which_cards(way: str, sampler: str, gpus: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    way, _, device = way.partition(" on ")
    if not told:
        return refuse._memory(Config(weights_over=way, sampler=sampler))
    with pytest.raises(UserError, match=told):
        refuse._memory(Config(weights_over=way, sampler=sampler, device=device))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: the memory of another process cannot be opened")
def test_memory_of_a_gpu_is_opened_by_a_worker(files: Path, tmp_path: Path) -> None:
    """On one card, trainer and worker as two processes: the bits of weights that come from files."""
    how: dict[str, Any] = {"lag": 1, "sampler": "process", "steps": 4, "device": "cuda"}
    for way in ("files", "ipc"):
        small.start(files, tmp_path / way, weights_over=way, **how)
    same(learned(tmp_path / "ipc/small"), learned(tmp_path / "files/small"))
