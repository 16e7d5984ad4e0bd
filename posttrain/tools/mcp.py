"""The tools of an MCP server: `files = mcp("python server.py")` or `mcp("http://127.0.0.1:8000/mcp")` in a file of tools.

One session is kept open for all calls, in a thread of its own. A server that has died is started again once per call; what it cannot do,
does too slowly or did not survive is a text that begins with `error:`, as with every tool.
"""

from __future__ import annotations

import asyncio
import atexit
import shlex
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from posttrain.core.errors import UserError, unknown
from posttrain.tools.tool import Tool, ToolError, text_of

T = TypeVar("T")
_SETTLE = 5.0  # seconds that a session is given to end
_SLACK = 5.0  # seconds beyond those of a call: its own time-outs say more than the tool's


class Gone(Exception):
    """The connection is lost, or could not be made."""


class Server:
    """A session with one server: a command that is run (stdio), or a URL (streamable HTTP)."""

    def __init__(self, where: str, seconds: float, start: float, env: Mapping[str, str], cwd: str | None) -> None:
        self.where, self.seconds, self.start = where, seconds, start
        self.env, self.cwd = dict(env), cwd
        self.loop = asyncio.new_event_loop()
        self.lock = threading.Lock()  # around connecting, so that many calls start a dead server once
        self.client: Any = None
        self.ending: asyncio.Event | None = None
        self.task: Any = None
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - the server's stderr, as long as it lives
        threading.Thread(target=self.loop.run_forever, name=f"mcp {where}", daemon=True).start()
        atexit.register(self.close)

    def __deepcopy__(self, memo: Any) -> Server:
        return self  # a copy of an episode asks the same server

    # ---- the connection

    def connect(self, lost: Any = None) -> Any:
        """The open session; a new one where there is none, or where it is the one that was lost."""
        with self.lock:
            if self.client is None or self.client is lost:
                self.disconnect()
                ready: asyncio.Future[Any] = asyncio.Future(loop=self.loop)
                self.task = asyncio.run_coroutine_threadsafe(self.hold(ready), self.loop)
                self.client = self.wait(self.opened(ready), self.start)
            return self.client

    async def opened(self, ready: asyncio.Future[Any]) -> Any:
        return await asyncio.shield(ready)

    async def hold(self, ready: asyncio.Future[Any]) -> None:
        """Enter the session, tell, and leave it in the same task when asked to."""
        self.ending = asyncio.Event()
        try:
            async with import_module("mcp").Client(self.transport()) as client:
                ready.set_result(client)
                await self.ending.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(Gone(told(error)))
            elif not isinstance(error, Exception):
                raise

    def transport(self) -> Any:
        if is_url(self.where):
            return self.where
        stdio = import_module("mcp.client.stdio")
        program, *arguments = shlex.split(self.where)
        asked = stdio.StdioServerParameters(command=program, args=arguments, env=self.env, cwd=self.cwd)
        return stdio.stdio_client(asked, errlog=self.errors)

    def disconnect(self) -> None:
        if self.task is not None and self.ending is not None:
            self.loop.call_soon_threadsafe(self.ending.set)
            with suppress(Exception):
                self.task.result(_SETTLE)
        self.client = self.task = None

    def close(self) -> None:
        self.disconnect()
        self.loop.call_soon_threadsafe(self.loop.stop)

    def wait(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """What a coroutine gives, run in the session's thread; whatever the transport raises is a lost connection."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(seconds)
        except Late:
            future.cancel()
            raise
        except (Gone, ToolError):
            raise
        except Exception as error:
            if is_refusal(error):  # the server answered: it did not like the call
                raise ToolError(str(error)) from None
            raise Gone(told(error)) from None

    # ---- what is asked

    def tools(self) -> list[Any]:
        """What the server offers, all pages."""
        client = self.connect()
        found, cursor = [], None
        while True:
            page = self.wait(client.list_tools(cursor=cursor), self.seconds)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return found

    def call(self, name: str, /, **arguments: Any) -> str:
        """The result of a call in words; the server is started again once where it is gone."""
        lost: Any = None
        for attempt in (1, 2):
            try:
                lost = self.connect(lost)
                return said(self.wait(lost.call_tool(name, arguments), self.seconds))
            except Late:
                raise ToolError(f"{name} gave no result within {self.seconds:g} s") from None
            except Gone as error:
                if attempt == 2:
                    raise ToolError(f"the server of {name} is gone ({error}{self.last_words()})") from None
        raise AssertionError  # both attempts return or raise

    def last_words(self) -> str:
        """The last line that a server wrote to its standard error."""
        with suppress(OSError, ValueError):
            self.errors.seek(0)
            lines = self.errors.read()[-2000:].strip().splitlines()
            return f"; it wrote: {lines[-1][:200]}" if lines else ""
        return ""


def mcp(
    where: str, only: Sequence[str] = (), prefix: str = "", seconds: float = 30.0, output: int = 4000,
    env: Mapping[str, str] | None = None, cwd: str | None = None,
) -> list[Tool]:  # fmt: skip
    """The tools of a server. where: the command that starts it, or its URL. only: names of those that are wanted. prefix: put before
    each name. seconds, output: bounds of a call. env: variables for the command, which gets few of this process's; cwd: its folder."""
    package()
    if not is_url(where) and not where.strip():
        raise UserError('mcp needs the command that starts a server, or its URL: mcp("python server.py")')
    server = Server(where, seconds, max(seconds, 30.0), env or {}, cwd)
    try:
        offered = offers(server, only)
    except UserError:
        server.close()
        raise
    return [
        Tool(f"{prefix}{name}", described(tool), schema_of(tool), partial(server.call, name), 2 * seconds + server.start + _SLACK, output)
        for name, tool in offered.items()
        if not only or name in only
    ]  # fmt: skip


def offers(server: Server, only: Sequence[str]) -> dict[str, Any]:
    """What a server offers by name; a sentence where that is nothing, or not what is wanted."""
    try:
        offered = {tool.name: tool for tool in server.tools()}
    except (Gone, ToolError, Late, ValueError) as error:
        why = f"it said nothing for {server.start:g} s" if isinstance(error, Late) else str(error)
        told = f"no MCP server at {server.where!r}: {why}{server.last_words()}"
        raise UserError(f"{told}; try the command by itself") from None
    for name in only:
        if name not in offered:
            raise unknown(f"tool of the MCP server {server.where!r}", name, offered)
    if not offered:
        raise UserError(f"the MCP server {server.where!r} offers no tools")
    return offered


def described(tool: Any) -> str:
    return " ".join((tool.description or tool.title or tool.name).split())


def schema_of(tool: Any) -> dict[str, Any]:
    """The server's JSON schema of the arguments, with what every tool's has; references are filled in."""
    schema = dict(tool.input_schema or {})
    known = schema.get("$defs", {})
    properties = {name: plain(one, known) for name, one in schema.get("properties", {}).items()}
    return {"type": "object", "properties": properties, "required": list(schema.get("required", []))}


def plain(schema: Any, known: Mapping[str, Any], depth: int = 0) -> Any:
    """A schema without references, and `X or null` as X; what no tool of ours checks is left to the server."""
    if not isinstance(schema, Mapping) or depth > 8:
        return {}
    if "$ref" in schema:
        return plain(known.get(str(schema["$ref"]).rpartition("/")[2], {}), known, depth + 1)
    either = [one for one in schema.get("anyOf", ()) if isinstance(one, Mapping) and one.get("type") != "null"]
    if len(either) == 1:
        rest = {k: v for k, v in schema.items() if k != "anyOf"}
        return plain({**rest, **either[0]}, known, depth + 1)
    out = dict(schema)
    if "items" in out:
        out["items"] = plain(out["items"], known, depth + 1)
    return out


def said(result: Any) -> str:
    """What a call gave, as a text; what is no text is named."""
    parts = [block_text(block) for block in result.content or ()]
    text = "\n".join(part for part in parts if part)
    if not text and getattr(result, "structured_content", None) is not None:
        text = text_of(result.structured_content)
    if result.is_error:
        raise ToolError(text or "the server reports an error without words")
    return text or "(no output)"


def block_text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource":
        held = block.resource
        return str(getattr(held, "text", f"[{held.uri}, not a text]"))
    if block.type == "resource_link":
        return f"[{block.uri}]"
    return f"[{block.type}, {getattr(block, 'mime_type', 'of some kind')}]"


def is_url(where: str) -> bool:
    return where.startswith(("http://", "https://"))


def is_refusal(error: Exception) -> bool:
    """An answer of the server, not a lost connection."""
    package = import_module("mcp")
    closed = import_module("mcp_types").CONNECTION_CLOSED
    return isinstance(error, package.MCPError) and error.error.code != closed


def told(error: BaseException) -> str:
    """An error in a few words; of a group, its first."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".rstrip(": ")


def package() -> None:
    try:
        found = import_module("mcp")
    except ImportError:
        raise UserError("MCP servers need the package mcp; type: pip install 'posttrain[mcp]'") from None
    if not hasattr(found, "Client"):
        raise UserError("the package mcp that is installed is too old; type: pip install --upgrade 'posttrain[mcp]'")
