"""The page over HTTP: who is answered, with which headers, how it follows a run; and the commands that start it."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from posttrain.cli import main
from posttrain.core.errors import UserError
from posttrain.page import app, live
from posttrain.page.app import POLICY, App, static_files
from posttrain.page.folder import Folder
from posttrain.page.report import MODULES, bundled, gathered, report
from posttrain.page.server import Page
from posttrain.runs.lock import hold, release
from posttrain.runs.store import Store
from tests.page import made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    made.write(folder, "one", steps=6)
    return folder


@pytest.fixture(scope="module")
def page(root: Path) -> Iterator[Page]:
    served = Page(Folder(root), port=0).start()
    yield served
    served.stop()


def ask(page: Page, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    reply = connection.getresponse()
    try:
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


def test_the_page_its_files_and_its_api(page: Page) -> None:
    status, headers, body = ask(page, "/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    for address in re.findall(r'(?:src|href)="(/[^"]+)"', body.decode()):
        assert ask(page, address)[0] == 200, address
    status, headers, body = ask(page, "/api/runs")
    assert status == 200 and [r["name"] for r in json.loads(body)["runs"]] == ["one"]
    status, _, body = ask(page, "/api/run?run=on")
    assert status == 400 and "no run named 'on'; did you mean 'one'?" in json.loads(body)["error"]
    assert ask(page, "/api/rnu")[0] == 404 and ask(page, "/static/nothing.js")[0] == 404


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/runs", "/api/run?run=no", "/nothing"])
def test_every_reply_has_the_policy(page: Page, path: str) -> None:
    _, headers, _ = ask(page, path)
    assert headers["content-security-policy"] == POLICY and headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer" and "access-control-allow-origin" not in headers
    assert "unsafe" not in POLICY and "require-trusted-types-for 'script'" in POLICY


def test_only_this_machine_by_its_own_name(page: Page) -> None:
    for host in (
        "evil.example",
        f"evil.example:{page.port}",
        "127.0.0.1:1",
        "127.0.0.1",
        f"localhost.evil.example:{page.port}",
        "",
    ):
        assert ask(page, "/api/runs", Host=host)[0] == 400, host
    for host in (f"localhost:{page.port}", f"127.0.0.1:{page.port}", f"[::1]:{page.port}"):
        assert ask(page, "/api/runs", Host=host)[0] == 200, host


def test_the_port_that_browsers_leave_out(root: Path) -> None:
    def status(port: int, host: str) -> int:
        headers = [(b"host", host.encode())]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": headers,
            "query_string": b"",
            "scheme": "http",
        }
        refused = App(Folder(root), port).refusal(Request(scope))
        return refused[0] if refused else 200

    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert status(80, host) == 200 and status(80, f"{host}:80") == 200 and status(8765, host) == 400, host
    assert status(80, "evil.example") == 400 and status(80, "") == 400


def test_no_other_site(page: Page) -> None:
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{page.port + 1}"):
        assert ask(page, "/api/runs", Origin=origin)[0] == 403, origin
    assert ask(page, "/api/runs", Origin=f"http://127.0.0.1:{page.port}")[0] == 200
    assert ask(page, "/api/runs", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(page, "/api/runs", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 403
    assert ask(page, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200, (
        "a link to the page is fine"
    )


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(page: Page, method: str) -> None:
    assert ask(page, "/api/runs", method)[0] == 405


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/api/run?run=../../etc",
        "/static//etc/passwd",
    ],
)
def test_names_are_no_paths(page: Page, path: str) -> None:
    status, _, body = ask(page, path)
    assert status in (400, 404) and b"import" not in body


def test_a_bug_is_a_500_without_its_trace(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Folder) -> Any:
        raise ZeroDivisionError("one by none")

    monkeypatch.setattr(Folder, "runs", broken)
    status, headers, body = ask(page, "/api/runs")
    assert (
        status == 500
        and json.loads(body)["error"].startswith("ZeroDivisionError: one by none")
        and b"Traceback" not in body
    )
    assert headers["content-security-policy"] == POLICY


def test_a_key(root: Path) -> None:
    with pytest.raises(UserError, match="no key"):
        Page(Folder(root), "0.0.0.0", 0)
    served = Page(Folder(root), port=0, key="sécret&").start()
    try:
        assert served.url.endswith("/?key=s%C3%A9cret%26")
        assert ask(served, "/")[0] == 401 and ask(served, "/api/runs", Authorization="Bearer wrong")[0] == 401
        assert ask(served, "/static/app.js")[0] == 401
        status, headers, _ = ask(served, "/?key=s%C3%A9cret%26")
        cookie = headers["set-cookie"]
        assert (
            status == 303
            and headers["location"] == "/"
            and "HttpOnly" in cookie
            and "samesite=strict" in cookie.lower()
        )
        assert "cret" not in cookie, "the key itself is nowhere to be read"
        assert ask(served, "/api/runs", Cookie=cookie.partition(";")[0], Host="my.machine:1")[0] == 200
        assert ask(served, "/api/runs", Cookie="posttrain-view=0")[0] == 401
    finally:
        served.stop()


def test_many_streams_at_once_are_bounded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STREAMS", 5)
    asked = b"GET /events?run=one HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % page.port
    tabs = [socket.create_connection(("127.0.0.1", page.port), timeout=20) for _ in range(12)]
    for tab in tabs:
        tab.sendall(asked)
    assert sorted(tab.recv(12)[9:] for tab in tabs) == [b"200"] * 5 + [b"503"] * 7
    for tab in tabs:
        tab.close()
    for _ in range(200):
        if page.app.streams == 0:
            break
        time.sleep(0.05)
    assert page.app.streams == 0


def test_a_page_follows_a_run(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream tells of a step soon after it is written, and that the run has ended."""
    monkeypatch.setattr(live, "POLL", 0.02)
    monkeypatch.setattr(live, "IDLE", 0.02)
    where = made.write(tmp_path, "grows", steps=2)
    fd, key = hold(where, where)
    store = Store(where / "run.sqlite")
    served = Page(Folder(tmp_path), port=0).start()
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    try:
        connection.request("GET", "/events?run=grows")
        stream = connection.getresponse()
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert event(stream) == {"steps": 2, "running": True}
        store.log("train", 2, {"reward": 1.0}, [], 1.0)
        assert event(stream) == {"steps": 3, "running": True}
        store.forget("train", 1)
        assert event(stream) == {"steps": 1, "running": True}, "steps that are run again"
        release(fd, key)
        assert event(stream) == {"steps": 1, "running": False}
    finally:
        connection.close()
        store.close()
        served.stop()


def event(stream: Any) -> Any:
    while True:
        line = stream.readline().decode()
        assert line, "the stream has ended"
        if line.startswith("data: "):
            return json.loads(line[6:])


def test_reading_holds_up_no_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stream open, what the writer checkpoints goes into the database: its log does not grow."""
    monkeypatch.setattr(live, "IDLE", 0.02)
    where = made.write(tmp_path, "grows", steps=2)
    store = Store(where / "run.sqlite")
    folder = Folder(tmp_path)

    async def watch() -> None:
        stream = live.changes(folder, "grows")
        await anext(stream)
        for step in range(2, 6):
            store.log("train", step, {"reward": 1.0}, made.groups(step), 1.0)
            await anext(stream)
            store.sync()
        busy, log, moved = store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert busy == 0 and log == moved
        await stream.aclose()

    asyncio.run(watch())
    store.close()


def test_the_files_are_small_and_ask_nothing_of_others() -> None:
    files = static_files()
    assert sum(len(body) for body, _ in files.values()) <= 400_000
    for name, (body, _) in files.items():
        text = body.decode().replace("http://www.w3.org/2000/svg", "").replace("https://arxiv.org/abs/", "")
        assert name.endswith(".txt") or not re.findall(r"https?://(?!github\.com/leeoniya)[^\s\"'`)]+", text), name
        if name.endswith(".js") and name != "uplot.js":
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|new Function", text), name
    assert "Copyright" in files["uplot-licence.txt"][0].decode()


def test_modules_can_be_one_file() -> None:
    """The report joins them: no name of a module's own stands twice, and none is forgotten."""
    static = {k: v[0].decode() for k, v in static_files().items()}
    assert {f"{m}.js" for m in MODULES} == {k for k in static if k.endswith(".js")} - {"uplot.js"}
    names = re.findall(
        r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)",
        "\n".join(static[f"{m}.js"] for m in MODULES),
        re.M,
    )
    assert len(names) == len(set(names)), sorted({n for n in names if names.count(n) > 1})
    assert not re.search(r"^(import|export) ", bundled(static), re.M)


# ---- reports


def test_a_report_is_one_file_whose_data_is_no_code(root: Path) -> None:
    text = report(Folder(root), "one")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert data is not None and "<" not in data[1], "what a model wrote cannot end the element"
    found = json.loads(data[1])
    assert found["about"]["run"] == "one" and made.ATTACKS[0] in json.dumps(found["answers"])
    assert len(re.findall(r"<script", text)) == 3 and "src=" not in text.partition("<body>")[0]
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "unsafe" not in policy[1] and policy[1].count("sha256-") == 3
    assert str(root) not in text


def test_a_report_keeps_the_ends_and_stays_small(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = gathered(Folder(root), "one")
    assert len(found["answers"]) == 72 and {a["step"] for a in found["answers"]} >= {1, 6}
    assert "tokens?group=0&phase=train&run=one&sample=0&step=1" in found["data"]
    monkeypatch.setattr("posttrain.page.report.MOST_BYTES", 60_000)
    text = report(Folder(root), "one")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])  # type: ignore[index]
    assert 0 < len(data["answers"]) < 72 and len(json.dumps(data, separators=(",", ":"))) <= 60_000


def test_report_at_the_terminal(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "r.html"
    assert main(["report", str(root / "one"), "--to", str(to)]) == 0 and to.read_text().startswith("<!doctype html>")
    assert main(["report", str(root / "one"), "--to", str(to)]) == 2 and "add --force" in capsys.readouterr().err
    assert main(["report", "one", "--runs", str(root)]) == 0
    out = capsys.readouterr().out
    assert (
        "grpo on sums with pocket, finished after 6 steps" in out
        and "held-out accuracy at step 6: 0.9 (0.769 to 0.96)" in out
    )
    with Store(made.write(tmp_path, "shaky", steps=0) / "run.sqlite") as store:
        store.log("train", 0, {"reward": 0.5, "failed": 2.0}, made.groups(0, 2, 2), 0.5)
        store.event("train", 0, "reward error", "r failed on 2 of 4 (late\x1b[31m)")
    assert main(["report", "shaky", "--runs", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert "warning: 2 of 4 answers could not be scored (train: r failed on 2 of 4 (late" in told
    assert "\x1b" not in told and "no monitor has found anything" not in told
    assert main(["report", "one", "--runs", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["run"]["name"] == "one"


@pytest.mark.parametrize("argv, told", [
    (["report", "oen"], "no run or folder named 'oen'; did you mean 'one'?"),
    (["report", "."], "name one of them"),
    (["report", "one", "--to", "."], "is a folder; give a file"),
    (["report", "one", "--to", "no/r.html"], "there is no folder no"),
    (["view", "oen"], "did you mean 'one'?"),
    (["view", "--port", "70000"], "it must be 0 to 65535"),
    (["view", "--host", "0.0.0.0"], "there is no key"),
    (["view", "--runs", "nowhere"], "there is no folder nowhere here"),
])  # fmt: skip
def test_mistakes_at_the_terminal(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, argv: list[str], told: str
) -> None:
    monkeypatch.delenv("POSTTRAIN_API_KEY", raising=False)
    monkeypatch.chdir(root)
    asked = argv if "--runs" in argv else [*argv, "--runs", str(root)]
    assert main(asked) == 2
    error = capsys.readouterr().err
    assert told in error and "Traceback" not in error and error.count("\n") == 1


def test_view_until_it_is_stopped(root: Path) -> None:
    """The command prints the address, answers, and ends on SIGTERM with 0; a taken port that was asked for is an error."""
    command = [sys.executable, "-m", "posttrain", "view", str(root), "--port"]
    with subprocess.Popen([*command, "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        timer = threading.Timer(60, process.kill)
        timer.start()
        line = process.stderr.readline()
        port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", line)[1])  # type: ignore[index]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/api/runs")
        assert connection.getresponse().status == 200
        taken = subprocess.run([*command, str(port)], stderr=subprocess.PIPE, text=True, timeout=60)
        assert taken.returncode == 2 and "cannot listen" in taken.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        timer.cancel()


def test_a_taken_port_that_nobody_asked_for_is_no_trouble(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr("posttrain.page.server.PORT", taken.getsockname()[1])
        served = Page(Folder(root))
        assert served.port != taken.getsockname()[1]
        served.socket.close()


def test_a_stream_tells_of_a_run_that_is_gone_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open is the file that was there: the name must be looked at too. A new file of the same name is told as such."""
    monkeypatch.setattr(live, "IDLE", 0.02)
    made.write(tmp_path, "one", steps=2)
    made.write(tmp_path, "stays", steps=1)
    served = Page(Folder(tmp_path), port=0).start()
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    try:
        connection.request("GET", "/events?run=one")
        stream = connection.getresponse()
        assert event(stream) == {"steps": 2, "running": False}
        shutil.rmtree(tmp_path / "one")
        assert event(stream) == {"gone": True}
        made.write(tmp_path, "one", steps=3)
        found: dict[str, Any] = {}
        while found.get("steps") != 3:  # it is being written
            found |= event(stream)
        assert found["anew"]
        made.write(tmp_path, "other", steps=2)
        os.rename(tmp_path / "one", tmp_path / "earlier")
        os.rename(tmp_path / "other", tmp_path / "one")
        while (found := event(stream)).get("steps") != 2:
            pass
        assert found["anew"], "hardly a moment without a file, and another one"
    finally:
        connection.close()
        served.stop()
