"""Chromium for the browser tool: one process, a window for each call, and a gate that lets local pages through and nothing else."""

from __future__ import annotations

import asyncio
import html
import mimetypes
import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from posttrain.core.errors import UserError, nearest
from posttrain.tools.tool import ToolError

HOME = "http://pages.localhost"  # where the pages of a folder seem to be; nothing answers there but the gate
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_MOST = 1 << 23  # bytes of one file
_REDIRECTS = 5
_FLAGS = ["--host-resolver-rules=MAP * ~NOTFOUND", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp", "--no-first-run"]  # fmt: skip
_READ = """() => {
  const links = [];
  for (const a of document.querySelectorAll('a[href]')) {
    if (!a.innerText.trim()) continue;
    links.push(a.href);
    a.appendChild(document.createTextNode(' [' + links.length + ']'));
  }
  return {title: document.title, text: document.body ? document.body.innerText : '', links};
}"""


@dataclass(frozen=True)
class Seen:
    """A page as it was shown."""

    address: str
    title: str
    text: str
    links: list[str]


@dataclass(frozen=True)
class Site:
    """What may be shown: a folder, servers on this machine."""

    folder: Path | None
    servers: tuple[str, ...] = ()

    def address(self, given: str) -> str:
        """The whole address of a page; another place than those of the site is a ToolError."""
        home = HOME if self.folder is not None else self.servers[0]
        whole = urljoin(f"{home}/", given.strip() or "/")
        if not self.allows(whole):
            raise ToolError(f"{given[:200]!r} is not one of the pages here; give a path such as / or a link of a page")
        return whole

    def allows(self, address: str) -> bool:
        try:
            at = urlsplit(address)
            where = f"{at.scheme}://{at.netloc}"
        except ValueError:
            return False
        return where in self.servers or (self.folder is not None and where == HOME)

    def shown(self, address: str) -> str:
        """An address as a model is told of it: of a folder, the path."""
        return unquote(address.removeprefix(HOME)) or "/"

    def file(self, address: str) -> tuple[int, str, bytes]:
        """(status, kind, contents) of a page of the folder; a folder without index.html is a list of links."""
        assert self.folder is not None
        path = (self.folder / unquote(urlsplit(address).path).lstrip("/")).resolve()
        if not path.is_relative_to(self.folder) or not path.exists():  # a link out of the folder leads nowhere
            return 404, "text/plain", b""
        if path.is_dir():
            index = path / "index.html"
            if not index.is_file():
                return 200, "text/html; charset=utf-8", self.listing(path).encode()
            path = index.resolve()
        if not path.is_relative_to(self.folder) or path.stat().st_size > _MOST:
            return 404, "text/plain", b""
        kind = mimetypes.guess_type(path.name)[0] or "text/plain"
        kind = "text/plain" if kind in ("text/markdown", "text/x-rst") else kind
        return 200, f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, path.read_bytes()

    def listing(self, path: Path) -> str:
        names = sorted(f.name + "/" * f.is_dir() for f in path.iterdir() if not f.name.startswith("."))
        base = f"/{path.relative_to(self.folder or path)}/".replace("/./", "/")
        rows = [f'<p><a href="{quote(base + name)}">{html.escape(name)}</a></p>' for name in names]
        return f"<title>Pages</title>{''.join(rows) or '<p>There are no pages here.</p>'}"

    def missing(self, address: str) -> str:
        names = [f"/{f.relative_to(self.folder)}" for f in self.folder.rglob("*.htm*")] if self.folder else []
        close = nearest(self.shown(address), names)
        return f"there is no page {self.shown(address)[:200]!r}" + (
            f"; did you mean {close!r}?" if close else "; / shows what there is"
        )


class Chromium:
    """The browser, in a thread of its own that starts with the first page."""

    def __init__(self, site: Site, seconds: float) -> None:
        try:
            import playwright.async_api as api
        except ImportError:
            raise UserError("a browser as a tool needs playwright: pip install 'posttrain[web]'") from None
        self.api, self.site, self.seconds = api, site, seconds
        self.program = next((found for name in _NAMES if (found := shutil.which(name))), None)
        if self.program is None:
            raise UserError("a browser as a tool needs Chromium, and none is installed; type: apt-get install chromium")
        self.lock = threading.Lock()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.browser: Any = None

    def see(self, address: str) -> Seen:
        """A page as it is shown; what goes wrong is a ToolError."""
        whole = self.site.address(address)
        if whole.startswith(f"{HOME}/") and self.site.file(whole)[0] == 404:
            raise ToolError(self.site.missing(whole))
        try:  # the first page waits for the browser to start
            return asyncio.run_coroutine_threadsafe(self._see(whole), self._started()).result(self.seconds + 30.0)
        except (TimeoutError, self.api.TimeoutError):
            raise ToolError(f"the page took longer than {self.seconds:g} s") from None
        except self.api.Error as error:
            raise ToolError(f"the page could not be shown: {str(error).splitlines()[0][:200]}") from None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self.lock:
            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                self.opening = asyncio.Lock()
                threading.Thread(target=self.loop.run_forever, daemon=True).start()
            return self.loop

    async def _launched(self) -> Any:
        async with self.opening:
            if self.browser is None or not self.browser.is_connected():  # the first time, or after a crash
                driver = await self.api.async_playwright().start()
                self.browser = await driver.chromium.launch(executable_path=self.program, args=_FLAGS)
            return self.browser

    async def _see(self, address: str) -> Seen:
        browser = await self._launched()
        context = await browser.new_context(service_workers="block", accept_downloads=False)
        try:
            return await asyncio.wait_for(self._read(context, address), self.seconds)
        finally:
            with suppress(Exception):  # a page that is stuck is let go all the same
                await asyncio.wait_for(context.close(), 5.0)

    async def _read(self, context: Any, address: str) -> Seen:
        await context.route("**/*", self._gate)
        await context.route_web_socket("**/*", lambda socket: socket.close())
        page = await context.new_page()
        context.on("page", lambda other: asyncio.ensure_future(other.close()))  # no second window
        await page.goto(address, wait_until="load", timeout=1000 * self.seconds)
        found = await page.evaluate(_READ)
        links = [str(link) for link in found["links"]]
        return Seen(self.site.shown(page.url), str(found["title"])[:200], str(found["text"]).strip(), links)

    async def _gate(self, route: Any) -> None:
        """Answer from the folder, ask a server of the site, refuse all else; redirects are looked at one by one."""
        address = route.request.url
        if self.site.folder is not None and address.startswith(f"{HOME}/"):
            status, kind, body = self.site.file(address)
            await route.fulfill(status=status, content_type=kind, body=body)
            return
        for _ in range(_REDIRECTS):
            if not self.site.allows(address) or address.startswith(f"{HOME}/"):
                break
            reply = await route.fetch(url=address, max_redirects=0, timeout=1000 * self.seconds)
            if not 300 <= reply.status < 400 or "location" not in reply.headers:
                await route.fulfill(response=reply)
                return
            address = urljoin(address, reply.headers["location"])
        await route.abort("blockedbyclient")
