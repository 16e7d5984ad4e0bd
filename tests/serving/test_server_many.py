"""Many clients at once: each gets what it gets alone; full queues, hang-ups and faults cost the others nothing."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.inference.jobs import Job
from posttrain.inference.pages import Pages
from posttrain.policies.load import load_model
from posttrain.serving.backends import NativeBackend, PlainBackend
from posttrain.serving.limits import ApiError
from posttrain.serving.openai import parse_request
from posttrain.serving.queue import Queue
from posttrain.serving.request import Request
from posttrain.serving.server import Server
from posttrain.serving.service import Service
from tests.serving.serving import SUM, call, chat, events, said, slow, start


def test_eight_at_once_get_what_each_gets_alone(server: Server) -> None:
    bodies = [
        {"messages": [{"role": "user", "content": f"What is {a}+{a + 3}? Think first."}], "max_tokens": 20 + a, "n": 1 + a % 2,
         "seed": a, "temperature": a % 3}
        for a in range(8)
    ]  # fmt: skip
    alone = [said(call(server, "/v1/chat/completions", b)[1]) for b in bodies]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda b: said(call(server, "/v1/chat/completions", b)[1]), bodies))
    assert together == alone


def test_a_longer_request_than_there_is_room_for(policy: Any) -> None:
    """Slots have 1,024 positions at first; a request that needs more waits for the one before it, and is answered."""
    short = load_model("pocket", "cpu")
    object.__setattr__(short.model.config, "max_positions", 4096)
    service = Service(short, "pocket")
    server = start(service)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(chat, server, SUM, temperature=0, max_tokens=60)
            second = pool.submit(chat, server, SUM, temperature=0, max_tokens=1500)
            assert said(first.result()) == said(second.result())
        assert service.queue.backend.engine.slots.length > 1500
    finally:
        server.stop()
        service.close()


def test_a_client_that_hangs_up_leaves_room_for_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 answers of 900 tokens in 32 slots, at 50 ms per token: over a minute. Once the client disconnects the queue is
    empty within seconds, of running and of waiting jobs."""
    body = {
        "prompt": "<|user|>Count",
        "max_tokens": 900,
        "temperature": 8.0,
        "n": 40,
        "seed": 3,
        "stop": "\u20ac\u20ac",
    }
    queue = server.service.queue
    slow(monkeypatch, server.service)
    for stream in (True, False):
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        link.request("POST", "/v1/completions", json.dumps(body | {"stream": stream}).encode())
        if stream:
            assert link.getresponse().readline().startswith(b"data: ")
        before = time.monotonic()
        while not queue.load and time.monotonic() < before + 10:
            time.sleep(0.01)
        assert queue.load
        link.sock.shutdown(socket.SHUT_RDWR)
        link.close()
        before = time.monotonic()
        while queue.load and time.monotonic() < before + 20:
            time.sleep(0.05)
        assert queue.load == 0
        assert not queue.backend.owner and not queue.backend.engine.busy
    monkeypatch.undo()
    assert said(chat(server, temperature=0)) == said(chat(server, temperature=0))


def test_many_long_prompts_come_a_few_at_a_time(policy: Any) -> None:
    """Running answers wait while prompts are prefilled, so a step takes at most 512 tokens of them, or one prompt; answers to one
    prompt share it."""
    backend = NativeBackend(policy, slots=6)
    jobs = [Job(torch.arange(2, 202), rng.key(i), Sampling(2), group=g) for i, g in enumerate((0, 0, 0, 1, 2, 3, 4))]
    jobs.append(Job(torch.arange(900) % 500, rng.key(9), Sampling(2), group=5))
    request = Request(jobs)
    assert backend.can_admit(request, idle=True)
    backend.add(request)
    given = []
    while not request.done:
        before = len(backend.backlog)
        backend.step()
        given.append(before - len(backend.backlog))
    assert given[:2] == [4, 2] and sum(given) == 8 and given.count(1) >= 1
    assert not backend.owner and not backend.engine.busy


def test_slots_are_as_many_as_memory_allows(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Pages.bytes_per_page(policy.model, 1024)
    for memory, slots, length in ((4 * 10 * one, 10, 1024), (4 * 3 * one, 8, 1024), (4 * 10**9 * one, 32, 1024)):
        monkeypatch.setattr(os, "sysconf", lambda name, m=memory: m if name == "SC_PHYS_PAGES" else 1)
        backend = NativeBackend(policy)
        assert backend.slots == slots and backend.max_model_len == length


def test_a_full_queue_is_503_and_an_impossible_request_400(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(policy, "pocket", slots=1, max_queued=2)
    server = start(service)
    slow(monkeypatch, service)
    body = {"prompt": "<|user|>Count", "max_tokens": 900, "temperature": 8.0, "seed": 3, "n": 2}
    try:
        assert call(server, "/v1/completions", body | {"n": 3})[0] == 400
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        link.request("POST", "/v1/completions", json.dumps(body).encode())
        while not service.queue.load:
            time.sleep(0.01)
        status, told = call(server, "/v1/completions", body | {"n": 1})
        assert status == 503 and "2 answers are being made" in told["error"]["message"]
        service.close()  # the waiting client gets an error, it is not left hanging
        assert link.getresponse().status == 503
        link.close()
    finally:
        server.stop()


def test_no_place_is_kept_for_clients_that_left_while_they_waited(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(policy, "pocket", slots=1, max_queued=3)
    slow(monkeypatch, service)

    def ask(max_tokens: int) -> Any:
        return service.submit(parse_request({"prompt": [5] * 4, "max_tokens": max_tokens, "temperature": 8.0}, "text"))

    try:
        ask(900)
        while not service.queue.live:
            time.sleep(0.005)
        ask(1020)  # needs longer slots: it waits until nothing runs, and so do those behind it
        left = ask(5)
        with pytest.raises(ApiError, match="3 answers are being made"):
            ask(5)
        left.cancel()
        ask(5)
        assert service.queue.load == 3 and left.request not in service.queue.inbox
    finally:
        service.close()


def test_a_fault_of_the_engine_ends_no_server(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(policy, "pocket")
    server = start(service)
    body = {"prompt": "<|user|>", "max_tokens": 3}
    engine = service.queue.backend.engine
    try:
        with monkeypatch.context() as m:
            m.setattr(engine, "step", lambda: 1 / 0)
            status, told = call(server, "/v1/completions", body)
            assert status == 500 and "ZeroDivisionError" in told["error"]["message"]
        assert call(server, "/v1/completions", body)[0] == 200 and call(server, "/health")[1]["answers"] == 0
    finally:
        server.stop()
        service.close()


def test_other_models_are_served_one_by_one(policy: Any, server: Server) -> None:
    """The path of models that the native engine does not support, with one that it does: the same answers."""
    queue = Queue(policy)
    queue.backend = PlainBackend(policy)
    assert Queue(policy).backend.max_model_len == 1024
    service = Service(policy, "pocket")
    service.queue.close()
    service.queue = queue
    queue.start()
    other = start(service)
    try:
        how = {"temperature": 0, "max_tokens": 60, "n": 2}
        for more in ({}, {"stop": "->"}):
            assert chat(other, **how, **more)["choices"] == chat(server, **how, **more)["choices"]
        body = {"messages": [{"role": "user", "content": SUM}], "temperature": 0}
        joined = "".join(
            c["delta"].get("content", "") for p in events(other, "/v1/chat/completions", body) for c in p["choices"]
        )
        assert joined == said(chat(server, temperature=0))[0]
    finally:
        other.stop()
        service.close()
