"""Chat on the page: who may send, what is refused, what reaches the model's server, and how that server ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.cli import main
from posttrain.core.errors import UserError
from posttrain.page import chat as chat_module
from posttrain.page import child, talk
from posttrain.page.chat import Chat, Model
from posttrain.page.folder import Folder
from posttrain.page.server import Page
from tests.page import made
from tests.page.model_server import ModelServer


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    server = ModelServer()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, model: ModelServer) -> Iterator[Page]:
    folder = tmp_path_factory.mktemp("runs")
    made.write(folder, "one", steps=1)
    closed = ModelServer()
    closed.stop()
    served = Page(
        Folder(folder), port=0, chat=Chat([Model('one<"&', model.port, "secret"), Model("gone", closed.port, "x")])
    )
    yield served.start()
    served.stop()


def token(page: Page) -> tuple[str, list[str]]:
    """As the page's scripts read it."""
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.request("GET", "/")
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r'<meta name="posttrain-chat" content="([^"]+)" data-models="([^"]+)">', text)
    assert found is not None
    names = found[2].replace("&lt;", "<").replace("&quot;", '"').replace("&amp;", "&")
    return found[1], json.loads(names)


def begin(page: Page, body: Any, path: str = "/chat", **changed: str | None) -> http.client.HTTPConnection:
    """A message on its way."""
    headers = {
        "Origin": f"http://127.0.0.1:{page.port}", "Content-Type": "application/json", "X-Posttrain-Token": token(page)[0],
    } | {k.replace("_", "-"): v for k, v in changed.items()}  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, raw, {k: v for k, v in headers.items() if v is not None})
    return connection


def send(page: Page, body: Any, path: str = "/chat", **changed: str | None) -> tuple[int, Any]:
    """The status and what was said: the error, or all events of the answer."""
    connection = begin(page, body, path, **changed)
    reply = connection.getresponse()
    try:
        said = reply.read().decode()
        if reply.getheader("Content-Type", "").startswith("text/event-stream"):
            return reply.status, [json.loads(e.removeprefix("data: ")) for e in said.split("\n\n") if e]
        return reply.status, json.loads(said)
    finally:
        connection.close()


def asks(text: str, model: str = 'one<"&', **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def test_a_message_reaches_the_model_with_its_key(page: Page, model: ModelServer) -> None:
    assert token(page)[1] == ['one<"&', "gone"] and token(page)[0] != token(page)[0], "each loading has its own"
    status, events = send(page, asks("hi", temperature=0, extra=1))
    assert status == 200 and events == [
        {"text": "you"}, {"text": " said"}, {"text": " hi"}, {"end": "stop", "tokens": 3},
    ]  # fmt: skip
    path, key, body = model.seen[-1]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    sent = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 512}
    assert body == sent | {"stream": True, "stream_options": {"include_usage": True}}


def test_an_answer_comes_as_it_is_written_and_ends_when_nobody_listens(page: Page, model: ModelServer) -> None:
    connection = begin(page, asks("hold"))
    reply = connection.getresponse()
    assert reply.readline() == b'data: {"text": "you"}\n' and not model.go_on.is_set(), "the first word, while it waits"
    assert page.app.chat is not None and page.app.chat.busy == 1
    connection.close()
    reply.close()
    assert model.left.wait(10), "the model was told to stop"
    free(page)


def free(page: Page) -> None:
    """The place of an answer that has ended is free again."""
    assert page.app.chat is not None
    for _ in range(500):
        if page.app.chat.busy == 0:
            return
        time.sleep(0.01)
    raise AssertionError("it is still busy")


@pytest.mark.parametrize("text, told", [("half", "something else than an answer"), ("broken", "something else than an answer")])  # fmt: skip
def test_an_answer_that_breaks_off_says_so(page: Page, text: str, told: str) -> None:
    status, events = send(page, asks(text))
    assert status == 200 and events[:2] == [{"text": "you"}, {"text": " said"}] and told in events[2]["error"]
    free(page)


def test_an_answer_has_limits(page: Page, model: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(talk, "MOST_REPLY", 100)
    assert "something else" in send(page, asks("hi"))[1][-1]["error"]
    monkeypatch.undo()
    monkeypatch.setattr(talk, "SECONDS", 0.2)
    assert "did not answer within 0.2 s" in send(page, asks("hold"))[1][-1]["error"]
    free(page)


@pytest.mark.parametrize("changed, status", [
    ({"X_Posttrain_Token": None}, 403), ({"X_Posttrain_Token": "0." + "0" * 64}, 403), ({"X_Posttrain_Token": "é"}, 403),
    ({"Origin": None}, 403), ({"Origin": "null"}, 403), ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "http://127.0.0.1:1"}, 403), ({"Sec_Fetch_Site": "cross-site"}, 403), ({"Sec_Fetch_Site": "same-site"}, 403),
    ({"Host": "evil.example"}, 400), ({"Content_Type": "text/plain"}, 415), ({"path": "/api/runs"}, 405), ({"path": "/"}, 405),
])  # fmt: skip
def test_only_from_the_page_itself(page: Page, model: ModelServer, changed: dict[str, str | None], status: int) -> None:
    before = len(model.seen)
    assert send(page, asks("hi"), **changed)[0] == status
    assert len(model.seen) == before, "nothing was forwarded"


def test_a_page_without_chat_only_reads(page: Page) -> None:
    plain = Page(page.app.folder, port=0).start()
    try:
        connection = http.client.HTTPConnection("127.0.0.1", plain.port, timeout=10)
        connection.request("POST", "/chat", b"{}", {"Origin": f"http://127.0.0.1:{plain.port}"})
        assert connection.getresponse().status == 405
        connection.close()
        assert not re.search(r"posttrain-chat", plain.app.static["index.html"][0].decode())
    finally:
        plain.stop()


@pytest.mark.parametrize("body, status, told", [
    (b"{", 400, "a JSON object"), ([], 400, "a JSON object"), (b"[" * 100_000, 400, "a JSON object"),
    (asks("hi", "on"), 400, "no model named 'on'"), ({"model": [], "messages": []}, 400, "no model named '[]'"),
    ({"model": "gone", "messages": []}, 400, "a list of 1 to 200"), ({"model": "gone", "messages": [{}]}, 400, "has a role"),
    ({"model": "gone", "messages": [{"role": "tool", "content": "x"}]}, 400, "has a role"),
    (asks("hi", temperature=3), 400, "temperature is 3; it must be 0 to 2"),
    (json.dumps(asks("hi", temperature=float("nan"))).encode(), 400, "temperature is nan"),
    (asks("hi", max_tokens=0), 400, "max_tokens is 0"), (asks("hi", max_tokens=True), 400, "max_tokens is True"),
    (asks("x" * (257 << 10)), 400, "more than 256 kB; begin a new one"), (asks("fail"), 400, 'one<"&: too long'),
    (asks("odd"), 502, "something else than an answer"), (asks("hi", "gone"), 502, "has ended; start posttrain view again"),
])  # fmt: skip
def test_mistakes(page: Page, body: Any, status: int, told: str) -> None:
    got, said = send(page, body)
    assert got == status and told in said["error"]


def test_few_at_once(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "AT_ONCE", 0)
    assert send(page, asks("hi"))[0] == 503
    monkeypatch.undo()
    assert page.app.chat is not None and page.app.chat.busy == 0 and send(page, asks("hi"))[0] == 200


# ---- the child


def stands_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """A program in the place of `python -m posttrain serve`."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(0o755)
    monkeypatch.setattr(child.sys, "executable", str(program))


LISTENS = """import os, signal, sys
held = os.open(os.environ["HELD"], os.O_WRONLY) if "HELD" in os.environ else None
print("a warning", file=sys.stderr)
print(f"{sys.argv[4]} (engine on cpu) at http://127.0.0.1:{4000 + len(os.environ['POSTTRAIN_API_KEY'])}/v1; Ctrl-C stops it", file=sys.stderr, flush=True)
signal.alarm(60)
signal.pause()
"""


def test_children_end_with_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stands_in(monkeypatch, tmp_path, LISTENS)
    started: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen
    monkeypatch.setattr(child.subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1])
    said: list[str] = []
    with child.serving(["a", "--b"], "runs", said.append) as models:
        assert [(m.name, m.port, len(m.key)) for m in models] == [("a", 4064, 64), ("--b", 4064, 64)]
        assert models[0].key != models[1].key and said == ["a warning"] * 2
        assert not any(m.key in " ".join(p.args) for m in models for p in started), "keys are in no command line"
        assert all(p.poll() is None for p in started)
    assert all(p.returncode is not None for p in started) and len(started) == 2


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel ends the children of a killed page on Linux alone"
)
def test_children_end_with_a_page_that_is_killed(tmp_path: Path) -> None:
    """The child holds the other end of a pipe, which closes with it."""
    code = (
        "import os, signal, sys; from posttrain.page import child; sys.executable = sys.argv[1]\n"
        "with child.serving(['a'], 'runs', print):\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    program, pipe = tmp_path / "python", tmp_path / "pipe"
    program.write_text(f"#!{sys.executable}\n{LISTENS}")
    program.chmod(0o755)
    os.mkfifo(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", code, str(program)], env=os.environ | {"HELD": str(pipe)}, timeout=60
        )
        assert ran.returncode == -9
        assert select.select([end], [], [], 20)[0] and os.read(end, 1) == b"", "nobody holds it any more"
    finally:
        os.close(end)


def test_a_model_that_cannot_be_loaded_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stands_in(monkeypatch, tmp_path, "import sys; sys.exit('error: no run named on; did you mean one?')")
    with (
        pytest.raises(UserError, match=r"^--chat on: no run named on; did you mean one[?]$"),
        child.serving(["on"], "runs", print),
    ):
        pass


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "c")])
def test_one_or_two_that_differ(names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = [x for name in names for x in ("--chat", name)]
    assert main(["view", "--runs", str(tmp_path), *asked]) == 2
    assert "give one run, or two that differ" in capsys.readouterr().err
