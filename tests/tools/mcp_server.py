"""An MCP server as its author would write one, with the package `mcp`: over stdio, or over HTTP on a port that is given."""

from __future__ import annotations

import os
import sys
import threading
from typing import Literal

from mcp.server.mcpserver import MCPServer

server = MCPServer("desk")
calls = 0


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two
    numbers."""
    return a + b


@server.tool()
def counted(name: str, kind: Literal["x", "y"] = "x", note: str | None = None) -> str:
    """How many calls this process has had."""
    global calls
    calls += 1
    return f"{name} {kind} {note} {calls}"


@server.tool()
def fail() -> str:
    """Cannot."""
    raise ValueError("no such thing")


@server.tool()
def hang() -> str:
    """Never ends by itself."""
    threading.Event().wait(30)
    return "awake"


@server.tool()
def die() -> str:
    """Takes the server with it."""
    print("I was told to", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
