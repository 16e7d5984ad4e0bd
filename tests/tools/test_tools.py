"""Tools: schemas from signatures, mistakes of models as observations, and the four that come with the package."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any, Literal

import pytest

from posttrain.cli import main
from posttrain.core.errors import UserError
from posttrain.sandbox.available import why_not
from posttrain.tools.calculator import calculator
from posttrain.tools.python import python
from posttrain.tools.search import search
from posttrain.tools.sql import sql
from posttrain.tools.tool import tool, tools_in


def weather(
    city: str, days: int = 1, unit: Literal["C", "F"] = "C", stations: list[int] | None = None
) -> dict[str, Any]:
    """The weather of a city,
    as of today.

    city: its English name
    days (int): how many days ahead
    """
    if city == "Atlantis":
        raise KeyError(city)
    return {"city": city, "days": days, "unit": unit}


def test_the_schema_is_the_signature() -> None:
    assert tool(weather).schema == {"type": "function", "function": {
        "name": "weather", "description": "The weather of a city, as of today.",
        "parameters": {"type": "object", "required": ["city"], "additionalProperties": False, "properties": {
            "city": {"type": "string", "description": "its English name"},
            "days": {"type": "integer", "description": "how many days ahead", "default": 1},
            "unit": {"enum": ["C", "F"], "default": "C"},
            "stations": {"type": "array", "items": {"type": "integer"}, "default": None},
        }},
    }}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"city": "Oslo", "days": 2.0}, '{"city": "Oslo", "days": 2, "unit": "C"}'),
        ('{"city": "Oslo"}', '{"city": "Oslo", "days": 1, "unit": "C"}'),
        ("{city", "error: the arguments of weather are not JSON: Expecting property name"),
        ("[]", "error: the arguments of weather are an object, got []"),
        ({}, "error: weather needs city"),
        ({"city": "Oslo", "day": 2}, "error: weather has no argument 'day'; did you mean 'days'?"),
        ({"city": 3}, "error: city of weather is of type string, got 3"),
        ({"city": "Oslo", "days": True}, "error: days of weather is of type integer, got True"),
        ({"city": "Oslo", "unit": "K"}, "error: unit of weather is one of 'C', 'F', got 'K'"),
        ({"city": "Oslo", "stations": [1, "x"]}, "error: an entry of stations of weather is of type integer, got 'x'"),
        ({"city": "Atlantis"}, "error: KeyError: 'Atlantis'"),
    ],
)
def test_a_call_is_an_observation_whatever_it_is(arguments: Any, said: str) -> None:
    assert tool(weather)(arguments).startswith(said)


def test_a_late_call_and_a_long_result() -> None:
    never = threading.Event()

    def stuck() -> str:
        """Waits."""
        never.wait(30)
        return "late"

    assert tool(stuck, seconds=0.05)({}) == "error: stuck gave no result within 0.05 s"
    never.set()

    def long() -> str:
        """Talks."""
        return "x" * 100

    assert tool(long, output=10)({}) == "x" * 10 + "\n... 90 more characters were left out"


def untyped(x) -> str:  # type: ignore[no-untyped-def]
    """Has no type."""
    return ""


def many(*x: int) -> str:
    """Takes many."""
    return ""


def strange(x: set[int]) -> str:
    """Takes a set."""
    return ""


def silent(x: int) -> str:
    return ""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "write `x: str`"),
        (many, "name its arguments one by one"),
        (strange, "a tool takes str, int"),
        (silent, "has no docstring"),
    ],
)
def test_a_function_that_a_model_could_not_call_is_refused(function: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        tool(function)


# ---- calculator


@pytest.mark.parametrize(
    ("expression", "said"),
    [("(3 + 4) * 2", "14"), ("2^10", "1024"), ("7 // 2 - -1", "4"), ("round(sqrt(2), 3)", "1.414"), ("max(1, 2) × 3", "6"), ("1e3/3", "333.3333333333333"),
     ("1/0", "error: division by zero"), ("__import__('os')", "error: \"__import__('os')\" is not arithmetic"), ("9**9**9", "error: the power is too large"),
     ("2**6999*2**6999*9", "error: the number is too large"), ("factorial(99999)", "error: factorial of a number above 1500"), ("(-8)**0.5", "error: the result is not a real"),
     ("x + 1", "error: 'x' is not arithmetic"), ("3 +", "error: cannot compute"), ("1" * 2000, "error: the expression has 2000 characters"),
     ("sqrt(-1)", "error: cannot compute"), ("(1).real", "error: '1 .real' is not arithmetic"), ("True + 1", "error: 'True' is not arithmetic"), ("-" * 900 + "1", ""),
     ("round(5, -99999999)", "error: round to at most 300 places"), ("1e400", "error: the number is too large"), ("1e308*10", "error: the number is too large")],
)  # fmt: skip
def test_the_calculator(expression: str, said: str) -> None:
    assert calculator({"expression": expression}).startswith(said)


# ---- SQL


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    file = tmp_path / "shop 1.db"
    with sqlite3.connect(file) as database:
        database.execute("create table item (name text, price real)")
        database.executemany(
            "insert into item values (?, ?)", [("pen", 1.5), ("ink", None)] + [(f"n{i}", i) for i in range(60)]
        )
    database.close()
    return file


def test_sql_reads(shop: Path) -> None:
    ask = sql(str(shop))
    assert "create table item (name text, price real)" in ask.description.lower()
    assert ask({"query": "select name, price from item limit 2"}) == "name | price\npen | 1.5\nink | NULL"
    assert ask({"query": "select * from item"}).endswith("... more rows were left out; use LIMIT")
    assert ask({"query": "select nme from item"}) == "error: no such column: nme"


@pytest.mark.parametrize(
    "query",
    ["delete from item", "drop table item", "insert into item values ('x', 1)", "attach '/tmp/x.db' as x", "pragma journal_mode=off", "create table t (a)",
     "select load_extension('x')", "vacuum into '/tmp/y.db'", "select 1; drop table item", "select writefile('x', 'y')", "update item set price = 0"],
)  # fmt: skip
def test_sql_writes_nothing(query: str, shop: Path) -> None:
    before = shop.read_bytes()
    assert sql(str(shop))({"query": query}).startswith("error:")
    assert shop.read_bytes() == before and not Path("/tmp/y.db").exists()


def test_sql_stops_in_time_and_writes_where_asked(shop: Path) -> None:
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select max(i) from n"
    assert sql(str(shop), seconds=0.1)({"query": endless}) == "error: the statement ran longer than 0.1 s"
    ask = sql(str(shop), write=True)
    assert ask({"query": "delete from item where name = 'pen'"}) == "done, 1 rows changed"
    assert ask({"query": "select count(*) from item"}) == "count(*)\n61"
    assert ask({"query": "attach '/tmp/x.db' as x"}).startswith("error:")
    with pytest.raises(UserError, match="there is no database at nowhere"):
        sql("nowhere.db")
    (shop.parent / "text.db").write_text("not a database at all, but long enough to be read as one " * 20)
    with pytest.raises(UserError, match="is not a SQLite file"):
        sql(str(shop.parent / "text.db"))


# ---- search


def test_search_finds_by_words(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "whales.md").write_text("Whales are mammals that live in the sea. " * 40)
    (tmp_path / "deep" / "owls.txt").write_text("Owls hunt at night.")
    find = search(str(tmp_path), k=2, characters=30)
    assert find({"query": "who hunts at NIGHT?"}) == "[1] deep/owls.txt\nOwls hunt at night."
    assert find({"query": 'sea" OR (* NEAR'}).startswith("[1] whales.md\nWhales are mammals that live")
    assert find({"query": "zebra"}) == find({"query": "!?"}) == "nothing was found; try other words"


def test_search_reads_rows_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "docs.jsonl"
    file.write_text('{"title": "A", "text": "apples and pears"}\n{"id": 7, "contents": "only pears"}\n')
    assert search(str(file))({"query": "apple"}) == "[1] A\napples and pears"
    assert "[2]" in search(str(file))({"query": "pears"})
    file.write_text('{"title": "A"}\n')
    with pytest.raises(UserError, match="line 1: it has no text in a column text"):
        search(str(file))
    with pytest.raises(UserError, match="has no documents"):
        search(str(tmp_path))


# ---- Python


@pytest.mark.skipif(bool(why_not()), reason=f"no sandbox here: {why_not()}")
def test_python_runs_in_the_sandbox() -> None:
    run = python(seconds=1.0)
    assert run({"code": "import os\nprint(6 * 7, os.path.exists('/etc/passwd'))"}) == "42 False"
    assert run({"code": "print('a')\n1/0"}).startswith("a\nTraceback") and "ZeroDivisionError" in run({"code": "1/0"})
    assert run({"code": "x = 1"}) == "(no output: print the result)"
    assert run({"code": "while True: pass"}) == "error: it ran out of time (limit 1 s)"
    assert "error: it printed too much" in run({"code": "while True: print('x' * 999)"})


# ---- at the terminal


def test_a_file_of_tools_at_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my_kitchen_tools.py"
    file.write_text(
        "from posttrain.tools.calculator import calculator\nimport math\n"
        'def cups(n: float, unit: str = "cup") -> str:\n    """Cups in millilitres."""\n    return f"{n * 240:g} ml"\ndef _hidden(x): ...\n'
    )
    assert [t.name for t in tools_in(str(file))] == ["calculator", "cups"]
    assert main(["tools", str(file)]) == 0
    assert "cups(n: number, unit: string = 'cup')\n  Cups in millilitres." in capsys.readouterr().out
    assert main(["tools", str(file), "--call", "cups", '{"n": 2}']) == 0
    assert capsys.readouterr().out == "480 ml\n"
    assert main(["tools", str(file), "--call", "cups", '{"m": 2}']) == 1
    assert main(["tools", str(file), "--json"]) == 0
    capsys.readouterr()
    assert main(["tools", str(file), "--call", "cusp", "{}"]) == 2
    assert "no tool named 'cusp'; did you mean 'cups'?" in capsys.readouterr().err
    file.write_text("x = 1\n")
    assert main(["tools", str(file)]) == 2
    assert "gives no tools; write a function with type hints and a docstring" in capsys.readouterr().err
    assert json.loads(json.dumps(calculator.schema)) == calculator.schema
