"""The server: the answers of direct sampling, whole or in pieces, alone or among others; mistakes told in OpenAI's shape."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.engines import server as server_file
from posttrain.engines.answering import Service
from posttrain.engines.makers import Plain
from posttrain.engines.openai import read
from posttrain.engines.queue import Queue
from posttrain.engines.sampling import Sampling, generate
from posttrain.engines.server import Server, loopback
from posttrain.engines.tickets import Ticket
from posttrain.engines.writing import Stops, Writing, held_back
from posttrain.models.load import load_model

SUM = "What is 12+7? Think first."
SAM = "Sam has 3 apples and buys 4 more. How many apples does Sam have? Think first."


@pytest.fixture(scope="module")
def policy() -> Any:
    return load_model("pocket", "cpu")


def start(service: Service, **how: Any) -> Server:
    server = Server(service, port=0, **how)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def server(policy: Any) -> Iterator[Server]:
    made = start(Service(policy, "pocket"))
    yield made
    made.shutdown()
    made.server_close()
    made.service.close()


def call(server: Server, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    """(status, JSON) of one request; a body is POSTed."""
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    raw = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    link.request("GET" if body is None else "POST", path, raw, headers or {})
    answer = link.getresponse()
    status, text = answer.status, answer.read()
    link.close()
    return status, json.loads(text)


def chat(server: Server, text: str = SUM, **more: Any) -> dict[str, Any]:
    status, answer = call(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **more})
    assert status == 200, answer
    return answer


def said(answer: dict[str, Any]) -> list[str]:
    return [c["message"]["content"] for c in answer["choices"]]


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    link.request("POST", path, json.dumps(body | {"stream": True}).encode())
    answer = link.getresponse()
    assert answer.status == 200 and answer.headers["Content-Type"] == "text/event-stream"
    lines = [line for line in answer.read().decode().split("\n\n") if line]
    link.close()
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: ") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# ---- answers


def test_greedy_equals_direct_sampling(server: Server, policy: Any) -> None:
    want = policy.sample([Prompt.text("x", SUM)], 1, Sampling(40, temperature=0.0))[0][0]
    answer = chat(server, temperature=0, max_tokens=40, logprobs=True, return_token_ids=True)
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": want.text} and choice["finish_reason"] == "stop"
    assert choice["token_ids"] == want.actions.tolist() and answer["prompt_token_ids"] == want.context.tolist()
    entries = choice["logprobs"]["content"]
    torch.testing.assert_close(torch.tensor([e["logprob"] for e in entries]), want.logp_T, atol=1e-4, rtol=0)
    assert "".join(e["token"] for e in entries) == want.text + "<|end|>"


def test_seeded_draws_are_those_of_their_keys(server: Server, policy: Any) -> None:
    """n answers are the draws of keys (serve, seed, prompt 0, i), hence equal on every call and unequal to each other."""
    how = {"temperature": 2.0, "max_tokens": 24, "seed": 5, "n": 3}
    keys = [[rng.key("serve", "seed", 5, 0, i) for i in range(3)]]
    context = policy.encode(Prompt.text("x", SAM))
    want = generate(policy.model, [context], keys, Sampling(24, 2.0), policy.stop_ids)[0]
    first = chat(server, SAM, **how)
    assert said(first) == [policy.decode(s.tokens) for s in want] == said(chat(server, SAM, **how))
    assert [c["index"] for c in first["choices"]] == [0, 1, 2] and len(set(said(first))) == 3
    assert said(chat(server, SAM, **how | {"seed": 6})) != said(first)
    assert said(chat(server, SAM, **how | {"seed": None})) != said(chat(server, SAM, **how | {"seed": None}))


def test_usage_counts_prompt_once_and_every_answer(server: Server, policy: Any) -> None:
    prompt = len(policy.encode(Prompt.text("x", SUM)))
    answer = chat(server, temperature=0, max_tokens=5, n=3)
    assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 15, "total_tokens": prompt + 15}
    assert {c["finish_reason"] for c in answer["choices"]} == {"length"}


def test_completions_of_texts_and_ids(server: Server, policy: Any) -> None:
    text = policy.tokenizer.apply_chat_template(
        [{"role": "user", "content": SUM}], tokenize=False, add_generation_prompt=True
    )
    ids = policy.tokenizer(text)["input_ids"]
    body = {"prompt": [text, text], "temperature": 0, "max_tokens": 40, "logprobs": 0}
    status, two = call(server, "/v1/completions", body)
    assert status == 200 and two["object"] == "text_completion" and two["usage"]["prompt_tokens"] == 2 * len(ids)
    _, one = call(server, "/v1/completions", body | {"prompt": ids})
    want = said(chat(server, temperature=0, max_tokens=40))[0]
    assert [c["text"] for c in two["choices"] + one["choices"]] == [want] * 3
    odds = one["choices"][0]["logprobs"]
    # each token begins where those before it end
    assert all((want + "<|end|>")[at:].startswith(t) for t, at in zip(odds["tokens"], odds["text_offset"], strict=True))


@pytest.mark.parametrize("stop", ["->", ["9 1", "->"], "</think>", "0=1 -> 1"])
def test_stop_strings_end_an_answer_and_are_not_shown(server: Server, stop: Any) -> None:
    whole = said(chat(server, temperature=0, max_tokens=60))[0]
    stops = [stop] if isinstance(stop, str) else stop
    want = whole[: min(whole.find(s) for s in stops)]
    answer = chat(server, temperature=0, max_tokens=60, stop=stop)
    assert said(answer) == [want] and answer["choices"][0]["finish_reason"] == "stop"
    pieces = events(
        server, "/v1/chat/completions", {"messages": [{"role": "user", "content": SUM}], "temperature": 0, "stop": stop}
    )
    assert "".join(c["delta"].get("content", "") for p in pieces for c in p["choices"]) == want
    assert (
        answer["usage"]["completion_tokens"] < chat(server, temperature=0, max_tokens=60)["usage"]["completion_tokens"]
    )


# ---- streams


@pytest.mark.parametrize("n", [1, 3])
def test_pieces_add_up_to_the_whole(server: Server, n: int) -> None:
    body = {"messages": [{"role": "user", "content": SAM}], "temperature": 2.0, "seed": 1, "max_tokens": 30, "n": n}
    more = {"logprobs": True, "return_token_ids": True}
    whole = call(server, "/v1/chat/completions", body | more)[1]
    pieces = events(server, "/v1/chat/completions", body | more | {"stream_options": {"include_usage": True}})
    assert pieces[-1]["usage"] == whole["usage"] and pieces[-1]["choices"] == []
    assert {p["object"] for p in pieces} == {"chat.completion.chunk"} and len({p["id"] for p in pieces}) == 1
    for want in whole["choices"]:
        mine = [c for p in pieces for c in p["choices"] if c["index"] == want["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(c["delta"].get("content", "") for c in mine) == want["message"]["content"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + [want["finish_reason"]]
        assert [t for c in mine for t in c.get("token_ids", [])] == want["token_ids"]
        entries = [e for c in mine if c["logprobs"] for e in c["logprobs"]["content"]]
        assert entries == want["logprobs"]["content"]


def slow(monkeypatch: pytest.MonkeyPatch, service: Service) -> None:
    """An engine that takes its time."""
    engine = service.queue.maker.engine
    turn = engine.turn
    monkeypatch.setattr(engine, "turn", lambda: (time.sleep(0.05), turn())[1])


def test_pieces_come_as_they_are_made(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, server.service)
    reply = server.service.ask(
        read({"messages": [{"role": "user", "content": SUM}], "temperature": 0, "stream": True}, "chat")
    )
    seen = [(p, reply.ticket.done) for p in reply.pieces() if p is not None]
    early = [p for p, done in seen if not done and p["choices"][0]["delta"].get("content")]
    assert len(early) > 5


def test_pieces_of_completions(server: Server) -> None:
    body = {"prompt": "<|user|>What is 12+7?<|end|><|assistant|>", "temperature": 0, "max_tokens": 12}
    whole = call(server, "/v1/completions", body)[1]["choices"][0]
    pieces = [c for p in events(server, "/v1/completions", body) for c in p["choices"]]
    assert "".join(c["text"] for c in pieces) == whole["text"] and pieces[-1]["finish_reason"] == whole["finish_reason"]


def test_no_half_characters_and_no_beginnings_of_stop_strings(policy: Any) -> None:
    text = "5 € – né STOP no"
    ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > len(text) - 3  # several tokens a character
    writing = Writing(lambda t: policy.tokenizer.decode(t), ["STOP"])
    pieces = [writing.more(ids[:n], False) for n in range(len(ids) + 1)]
    assert "".join(pieces) == "5 € – né " and "\ufffd" not in "".join(pieces)
    assert max(map(len, pieces)) <= 2
    stops = Stops(lambda t: policy.tokenizer.decode(t), ["STOP", "nothing"])
    found = stops(torch.tensor(ids))
    assert policy.tokenizer.decode(ids[:found]).endswith("STOP") and stops(torch.tensor(ids[: found - 1])) == 0
    cut = Writing(lambda t: policy.tokenizer.decode(t))
    half = ids[: ids.index(policy.tokenizer("€", add_special_tokens=False)["input_ids"][0]) + 1]
    assert cut.more(half, False) == "5 " and cut.more(half, True) == "\ufffd"  # at the end nothing is kept back


def test_held_back_by_hand() -> None:
    assert held_back("abc<", ["</think>"]) == "abc"
    assert held_back("abc</thin", ["</think>", "x"]) == "abc"
    assert held_back("a</", ["</a>", "a</b"]) == ""  # the longest beginning counts
    assert held_back("abc", ["bcd", "cx"]) == "a"
    assert held_back("abc", ["d"]) == "abc"


# ---- many at once


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
    """Room for 1,024 places is made first; a request that needs more waits for the one before it, and is answered."""
    short = load_model("pocket", "cpu")
    object.__setattr__(short.model.config, "max_positions", 4096)
    service = Service(short, "pocket")
    server = start(service)
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(chat, server, SUM, temperature=0, max_tokens=60)
            second = pool.submit(chat, server, SUM, temperature=0, max_tokens=1500)
            assert said(first.result()) == said(second.result())
        assert service.queue.maker.engine.slots.length > 1500
    finally:
        server.shutdown()
        server.server_close()
        service.close()


def test_a_client_that_hangs_up_leaves_room_for_others(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """12 answers of 900 tokens in 8 slots, at 50 ms a token: over a minute. Once the client hangs up the queue is empty
    within seconds, those that run and those that wait."""
    body = {
        "prompt": "<|user|>Count",
        "max_tokens": 900,
        "temperature": 8.0,
        "n": 12,
        "seed": 3,
        "stop": "\u20ac\u20ac",
    }
    queue = server.service.queue
    slow(monkeypatch, server.service)
    for stream in (True, False):
        link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        link.request("POST", "/v1/completions", json.dumps(body | {"stream": stream}).encode())
        if stream:
            assert link.getresponse().fp.readline().startswith(b"data: ")
        before = time.monotonic()
        while not queue.load and time.monotonic() < before + 10:
            time.sleep(0.01)
        assert queue.load
        assert link.sock is None or link.sock.shutdown(socket.SHUT_RDWR) is None
        link.close()
        before = time.monotonic()
        while queue.load and time.monotonic() < before + 20:
            time.sleep(0.05)
        assert queue.load == 0
        assert not queue.maker.owner and not queue.maker.engine.busy
    monkeypatch.undo()
    assert said(chat(server, temperature=0)) == said(chat(server, temperature=0))


def test_a_full_queue_is_503_and_an_impossible_request_400(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(policy, "pocket", slots=1, most=2)
    server = start(service)
    slow(monkeypatch, service)
    body = {"prompt": "<|user|>Count", "max_tokens": 900, "temperature": 8.0, "seed": 3, "n": 2}
    try:
        assert call(server, "/v1/completions", body | {"n": 3})[0] == 400
        link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
        link.request("POST", "/v1/completions", json.dumps(body).encode())
        while not service.queue.load:
            time.sleep(0.01)
        status, told = call(server, "/v1/completions", body | {"n": 1})
        assert status == 503 and "2 answers are being made" in told["error"]["message"]
        service.close()  # the one that waits is told, not left hanging
        assert link.getresponse().status == 503
        link.close()
    finally:
        server.shutdown()
        server.server_close()


def test_a_fault_of_the_engine_ends_no_server(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(policy, "pocket")
    server = start(service)
    body = {"prompt": "<|user|>", "max_tokens": 3}
    engine = service.queue.maker.engine
    try:
        with monkeypatch.context() as m:
            m.setattr(engine, "turn", lambda: 1 / 0)
            status, told = call(server, "/v1/completions", body)
            assert status == 500 and "ZeroDivisionError" in told["error"]["message"]
        assert call(server, "/v1/completions", body)[0] == 200 and call(server, "/health")[1]["answers"] == 0
    finally:
        server.shutdown()
        server.server_close()
        service.close()


def test_other_models_are_served_one_by_one(policy: Any, server: Server) -> None:
    """The path of models that the native engine does not know, with one that it does: the same answers."""
    queue = Queue(policy)
    queue.maker = Plain(policy)
    assert Queue(policy).maker.longest == 1024
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
        other.shutdown()
        other.server_close()
        service.close()


# ---- mistakes and keys


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", [1], 400, "expected an object"),
        ("/v1/chat/completions", {"messages": [], "temperature": 0}, 400, "messages is missing"),
        ("/v1/chat/completions", {"messages": [{"role": "usr", "content": ""}]}, 400, "expected one of system"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 3}]}, 400, "must be a string"),
        ("/v1/completions", {"prompt": "a", "temprature": 1}, 400, "did you mean 'temperature'?"),
        ("/v1/completions", {"prompt": "a", "tools": [{}]}, 400, "tools is not supported"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens is 0"),
        ("/v1/completions", {"prompt": "a", "max_tokens": True}, 400, "expected a whole number"),
        ("/v1/completions", {"prompt": "a", "temperature": -1}, 400, "temperature is -1.0"),
        ("/v1/completions", {"prompt": "a", "temperature": "hot"}, 400, "expected a number"),
        ("/v1/completions", b'{"prompt": "a", "top_p": NaN}', 400, "expected a number"),
        ("/v1/completions", {"prompt": "a", "top_p": 0}, 400, "top_p must be"),
        ("/v1/completions", {"prompt": "a", "stop": [""]}, 400, "none of them empty"),
        ("/v1/completions", {"prompt": "a", "logprobs": 3}, 400, "only 0 is supported"),
        ("/v1/completions", {"prompt": [99999]}, 400, "each from 0 to 511"),
        ("/v1/completions", {"prompt": ""}, 400, "at least one token"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 5000}, 400, "room for 1024"),
        ("/v1/completions", {"prompt": "a", "model": "poket"}, 404, "did you mean 'pocket'?"),
        ("/v1/chat/completion", {}, 404, "did you mean /v1/chat/completions?"),
        ("/v1/models", {}, 405, "asked with GET"),
        ("/v1/completions", None, 405, "asked with POST"),
        ("/v1/models/none", None, 404, "no model named 'none'"),
    ],
)
def test_mistakes(server: Server, path: str, body: Any, status: int, words: str) -> None:
    got, answer = call(server, path, body)
    assert got == status and words in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_a_large_body_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_file, "BODY", 100)
    status, told = call(server, "/v1/completions", {"prompt": "a" * 200})
    assert status == 413 and "at most 100" in told["error"]["message"]


def test_models_and_health(server: Server) -> None:
    assert call(server, "/health") == (200, {"status": "ok", "answers": 0})
    listed = call(server, "/v1/models")[1]["data"]
    assert [m["id"] for m in listed] == ["pocket"] and call(server, "/v1/models/pocket")[1] == listed[0]


def test_connections_are_kept(server: Server) -> None:
    link = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    for body in (b"{", b'{"prompt": "a", "max_tokens": 1}', b"{}"):
        link.request("POST", "/v1/completions", body)
        answer = link.getresponse()
        assert answer.status == (200 if b"prompt" in body else 400) and answer.read()
    link.close()


def test_only_loopback_without_a_key(server: Server) -> None:
    for host in ("0.0.0.0", "192.168.1.5", "::", "example.org"):
        assert not loopback(host)
        with pytest.raises(UserError, match="--api-key"):
            Server(server.service, host, 0)
    assert all(map(loopback, ("127.0.0.1", "localhost", "::1", "127.1.2.3")))
    status, told = call(server, "/v1/models", headers={"Host": "evil.example:8000"})  # a web page under another name
    assert status == 403 and "localhost only" in told["error"]["message"]


def test_a_key_is_asked_for(server: Server) -> None:
    keyed = start(server.service, key="s3cret")
    try:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "s3cre"}):
            status, told = call(keyed, "/v1/models", headers=headers)
            assert status == 401 and told["error"]["code"] == "invalid_api_key"
        good = {"Authorization": "Bearer s3cret"}
        assert call(keyed, "/v1/models", headers=good | {"Host": "other.example"})[0] == 200
        assert call(keyed, "/v1/completions", {"prompt": "a", "max_tokens": 1})[0] == 401
        assert call(keyed, "/v1/completions", {"prompt": "a", "max_tokens": 1}, good)[0] == 200
        assert call(keyed, "/health")[0] == 200
    finally:
        keyed.shutdown()
        keyed.server_close()


def test_a_port_that_is_taken_is_a_sentence(server: Server) -> None:
    with pytest.raises(UserError, match="use another --port"):
        Server(server.service, port=server.server_port)


def test_closing_twice_and_submitting_after(policy: Any) -> None:
    queue = Queue(policy)
    queue.start()
    queue.close()
    queue.close()
    with pytest.raises(Exception, match="it was stopped"):
        queue.submit(Ticket([]))
