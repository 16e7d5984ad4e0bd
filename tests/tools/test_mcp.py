"""The tools of a real MCP server, a process of its own: what it does, and what is told when it cannot."""

from __future__ import annotations

import copy
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from posttrain.core.errors import UserError
from posttrain.tools.mcp import mcp, plain, said
from posttrain.tools.tool import Tool, tools_in

pytest.importorskip("mcp", reason="needs the extra: pip install 'posttrain[mcp]'")
FILE = Path(__file__).parent / "mcp_server.py"
COMMAND = f"{sys.executable} {FILE}"


def server_of(tool: Tool) -> Any:
    return tool.function.func.__self__  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def tools() -> Iterator[dict[str, Tool]]:
    made = {tool.name: tool for tool in mcp(COMMAND, seconds=10)}
    yield made
    server_of(made["add"]).close()


def test_a_tool_for_each_of_the_server_with_its_schema(tools: dict[str, Tool]) -> None:
    assert list(tools) == ["add", "counted", "fail", "hang", "die"]
    assert tools["add"].description == "Add two numbers."
    known = tools["counted"].parameters
    assert known["required"] == ["name"] and known["properties"]["kind"]["enum"] == ["x", "y"]
    assert known["properties"]["note"]["type"] == "string"


def test_calls_go_to_one_session_and_errors_are_observations(tools: dict[str, Tool]) -> None:
    assert tools["add"]('{"a": 2}') == "3" and tools["add"]({"a": 2, "b": 5}) == "7"
    first = tools["counted"]({"name": "k", "kind": "y"})
    assert first.startswith("k y None ") and tools["counted"]({"name": "k"}) == f"k x None {int(first.split()[-1]) + 1}"
    assert tools["add"]({"b": 2}) == "error: add needs a"
    assert "kind of counted is one of" in tools["counted"]({"name": "k", "kind": "z"})
    assert tools["fail"]({}).startswith("error: ") and "no such thing" in tools["fail"]({})


def test_a_copy_of_an_episode_asks_the_same_server(tools: dict[str, Tool]) -> None:
    assert server_of(copy.deepcopy(tools["add"])) is server_of(tools["add"])


def test_a_call_that_is_late_is_given_up_and_the_next_is_answered(tools: dict[str, Tool]) -> None:
    server = server_of(tools["add"])
    server.seconds = 0.3
    try:
        assert tools["hang"]({}) == "error: hang gave no result within 0.3 s"
    finally:
        server.seconds = 10.0
    assert tools["add"]({"a": 1}) == "2"


def test_a_dead_server_is_told_and_started_again(tools: dict[str, Tool]) -> None:
    before = int(tools["counted"]({"name": "k"}).split()[-1])
    gone = tools["die"]({})  # it dies at the second attempt too
    assert gone.startswith("error: the server of die is gone (") and gone.endswith("it wrote: I was told to)")
    assert before >= 1 and tools["counted"]({"name": "k"}) == "k x None 1"


def test_over_http_with_some_of_the_tools_under_other_names() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([*COMMAND.split(), str(port)], stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr and any("running on" in line for line in process.stderr)
        (add,) = mcp(f"http://127.0.0.1:{port}/mcp", only=["add"], prefix="desk_", seconds=5)
        assert add.name == "desk_add" and add({"a": 4}) == "5"
        process.kill()
        process.wait()
        assert add({"a": 4}).startswith("error: the server of add is gone (")
        server_of(add).close()
    finally:
        process.kill()


def test_a_file_of_tools_may_hold_those_of_a_server(tmp_path: Path, tools: dict[str, Tool]) -> None:
    file = tmp_path / f"{tmp_path.name}_desk.py"
    file.write_text(
        f"from posttrain.tools.mcp import mcp\nfrom posttrain.tools.calculator import calculator\nfiles = mcp({COMMAND!r}, only=['add', 'fail'])\n"
    )
    found = tools_in(str(file))
    assert sorted(tool.name for tool in found) == ["add", "calculator", "fail"]
    for tool in found:
        if tool.name == "add":
            server_of(tool).close()
    file.write_text("from posttrain.tools.calculator import calculator\nsome = [calculator]\nmore = [calculator]\n")
    with pytest.raises(UserError, match="two tools named 'calculator'"):
        tools_in(str(file))


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("", "mcp needs the command that starts a server"),
        ("no-such-program-here", "no MCP server at 'no-such-program-here': FileNotFoundError"),
        (f"{sys.executable} -c 'import sys; sys.exit(\"broken\")'", "it wrote: broken"),
        ("http://127.0.0.1:9/mcp", "no MCP server at 'http://127.0.0.1:9/mcp'"),
        ("'unclosed", "No closing quotation"),
    ],
)
def test_mistakes_are_one_sentence(where: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        mcp(where, seconds=5)


def test_an_unknown_tool_is_told_with_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'add'"):
        mcp(COMMAND, only=["ad"])


def test_schemas_of_servers_are_made_plain() -> None:
    known = {"Place": {"type": "object", "title": "Place"}}
    assert plain({"$ref": "#/$defs/Place"}, known) == known["Place"]
    assert plain({"anyOf": [{"type": "integer"}, {"type": "null"}], "default": 3}, {}) == {
        "type": "integer",
        "default": 3,
    }
    assert plain({"type": "array", "items": {"$ref": "#/$defs/Place"}}, known)["items"] == known["Place"]
    either = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert plain(either, {}) == either  # left to the server
    tool = Tool("t", "d", {"properties": {"x": either}, "required": ["x"]}, lambda x: x)
    assert tool({"x": [1]}) == json.dumps([1])


def test_what_is_no_text_is_named() -> None:
    from mcp.types import CallToolResult, ImageContent, TextContent

    picture = ImageContent(type="image", data="aGk=", mime_type="image/png")
    assert said(CallToolResult(content=[TextContent(type="text", text="see"), picture])) == "see\n[image, image/png]"
    assert said(CallToolResult(content=[], structured_content={"a": 1})) == '{"a": 1}'
