"""The browser tool with a real Chromium: pages of a folder and of a local server, and everything that must not be reached."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from posttrain.core.errors import UserError
from posttrain.tools.tool import Tool, tools_in

try:
    from posttrain.tools.browser import browser

    browser(servers=["http://127.0.0.1:1"])
except UserError as error:
    pytest.skip(str(error), allow_module_level=True)

HOME = """<title>Handbook</title><h1>Welcome</h1><p>See <a href="rules/">the rules</a> or <a href="guide.html">the guide</a>.</p>
<p hidden>secret</p><script>document.body.append('made by a script')</script><a href="http://example.com/">out</a>
<a href="javascript:alert(1)">script</a><a href="../outside.txt">up</a>"""
ATTACKS = """<title>Attack</title><p id=x>nothing</p><script>
const said = [];
const tries = [fetch('http://127.0.0.1:PORT/secret').then(r => r.text()), fetch('file:///etc/hostname').then(r => r.text()),
  fetch('http://example.com/').then(r => r.text()), new Promise((ok, no) => { const s = new WebSocket('ws://127.0.0.1:PORT/'); s.onopen = () => ok('socket'); s.onerror = s.onclose = no; })];
window.open('/guide.html');
</script><img src="http://127.0.0.1:PORT/pixel"><iframe src="http://127.0.0.1:PORT/frame"></iframe>
<script>Promise.allSettled(tries).then(all => { document.getElementById('x').innerText = all.map(t => t.status).join(' '); });</script>"""


class Server(BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/away"):
            self.send_response(302)
            self.send_header("location", self.path.partition("?")[2])
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>Served</title><p>live page</p><a href='/two'>next</a>")

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, server: str) -> Path:
    root = tmp_path_factory.mktemp("web")
    (root / "outside.txt").write_text("private")
    folder = root / "site"
    (folder / "rules").mkdir(parents=True)
    (folder / "index.html").write_text(HOME)
    (folder / "guide.html").write_text("<p>" + "<p>".join(f"line {i} of the guide" for i in range(400)))
    (folder / "rules" / "one.txt").write_text("be kind")
    (folder / "rules" / "<b>.html").write_text("odd name")
    (folder / "link.txt").symlink_to(root / "outside.txt")
    (folder / "loop.html").write_text("<script>while (true) {}</script>")
    (folder / "attack.html").write_text(ATTACKS.replace("PORT", server.rpartition(":")[2]))
    return folder


@pytest.fixture(scope="module")
def tools(site: Path) -> dict[str, Tool]:
    return {t.name: t for t in browser(str(site), seconds=4.0)}


def test_a_page_is_read_with_numbered_links_that_can_be_followed(tools):
    said = tools["open_page"]({"address": "/"})
    assert said.startswith("/ Handbook\nWelcome") and "the rules [1]" in said and "the guide [2]" in said
    assert "made by a script" in said and "secret" not in said
    rules = tools["follow_link"]({"address": "/", "link": 1})
    assert rules.startswith("/rules/ Pages") and "one.txt [2]" in rules and "<b>.html [1]" in rules
    assert "be kind" in tools["follow_link"]({"address": "rules/", "link": 2})
    assert "odd name" in tools["follow_link"]({"address": "/rules/", "link": 1})


def test_long_pages_come_in_parts_and_lines_are_found(tools):
    first = tools["open_page"]({"address": "guide.html"})
    assert "line 0 of" in first and "line 399" not in first and "(part 1 of " in first
    last = int(first.rpartition(" of ")[2].rstrip(")"))
    assert last > 1 and "line 399 of" in tools["open_page"]({"address": "guide.html", "part": last})
    assert tools["open_page"]({"address": "guide.html", "part": 99}).startswith("error: the page has")
    assert tools["find_in_page"]({"address": "guide.html", "words": "Line 377"}) == "line 377 of the guide"
    assert "and 380 more lines" in tools["find_in_page"]({"address": "guide.html", "words": "guide"})
    assert tools["find_in_page"]({"address": "guide.html", "words": "zebra"}) == "no line of the page has these words"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://example.com/", "not one of the pages here"),
        ("file:///etc/passwd", "not one of the pages here"),
        ("http://pages.localhost.example.com/", "not one of the pages here"),
        ("http://user@127.0.0.1/", "not one of the pages here"),
        ("javascript:alert(1)", "not one of the pages here"),
        ("data:text/html,hi", "not one of the pages here"),
        ("//example.com", "not one of the pages here"),
        ("http://[", "error"),
        ("/../outside.txt", "there is no page"),
        ("/%2e%2e/outside.txt", "there is no page"),
        ("/..%2foutside.txt", "there is no page"),
        ("link.txt", "there is no page"),
        ("/giude.html", "did you mean '/guide.html'?"),
    ],
)
def test_nothing_else_is_shown(tools, address, words):
    said = tools["open_page"]({"address": address})
    assert said.startswith("error:") and words in said and "private" not in said


def test_links_out_and_links_that_are_not_there(tools):
    assert "not one of the pages here" in tools["follow_link"]({"address": "/", "link": 3})
    assert "not one of the pages here" in tools["follow_link"]({"address": "/", "link": 4})
    assert "there is no page" in tools["follow_link"]({"address": "/", "link": 5})
    assert "links 1 to 5, got 9" in tools["follow_link"]({"address": "/", "link": 9})


def test_a_page_cannot_reach_what_the_model_may_not(tools):
    Server.asked.clear()
    said = tools["open_page"]({"address": "attack.html"})
    assert "rejected rejected rejected rejected" in said or "nothing" in said
    assert not Server.asked


def test_a_page_that_never_ends_is_given_up_and_the_next_one_is_shown(tools):
    assert tools["open_page"]({"address": "loop.html"}).startswith("error: the page took longer than 4 s")
    assert "Welcome" in tools["open_page"]({"address": "/"})


def test_a_server_on_this_machine_and_where_it_sends_one(server, tmp_path):
    port = server.rpartition(":")[2]
    tools = {t.name: t for t in browser(servers=[server], seconds=4.0)}
    assert "live page" in tools["open_page"]({"address": "/"})
    assert "live page" in tools["follow_link"]({"address": f"{server}/", "link": 1})
    assert "live page" in tools["open_page"]({"address": "/away?/two"})
    for there in (f"http://localhost:{port}/secret", "http://example.com/", "file:///etc/passwd"):
        Server.asked.clear()
        assert tools["open_page"]({"address": f"/away?{there}"}).startswith("error: the page could not be shown")
        assert not [path for path in Server.asked if not path.startswith("/away")]
    assert "not one of the pages" in tools["open_page"]({"address": f"http://localhost:{port}/"})


def test_a_file_of_tools_may_have_a_browser(site, tmp_path):
    (tmp_path / "webtools.py").write_text(
        f"from posttrain.tools.browser import browser\n\nsite = browser({str(site)!r})\n"
    )
    assert [t.name for t in tools_in(str(tmp_path / "webtools.py"))] == ["open_page", "follow_link", "find_in_page"]


def test_mistakes():
    for given, words in (({}, "name their folder"), ({"folder": "nosuch"}, "no folder of pages"), ({"servers": ["http://example.com"]}, "no server on this machine")):  # fmt: skip
        with pytest.raises(UserError, match=words):
            browser(**given)
