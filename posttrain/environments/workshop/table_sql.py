"""Questions about a small table, answered by a SQL query that runs on a real SQLite database.

Level 1: a value by its key. Level 2: a count, a sum or the largest of something. Level 3: two conditions, or an order within one. Habits:
the query without its WHERE (the first row is read); > for <, or the other end; a column that is not there, and a guess after the error.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from random import Random
from typing import Any

from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.words import ANIMALS, ITEMS, NAMES, listed
from posttrain.environments.workshop.hermes import ToolScene, call
from posttrain.environments.workshop.scene import Expert, near, worded
from posttrain.tools.sql import answer as run_query
from posttrain.tools.tool import Tool, tool

DEFAULT_LEVEL = 2
HABITS = {"no_where": 6.0, "flipped": 1.0, "wrong_column": 1.0}
_TABLES = {
    "shop": ("item", "price", "stock", ITEMS),
    "people": ("name", "age", "height", NAMES),
    "zoo": ("animal", "weight", "cage", ANIMALS),
    "books": ("title", "pages", "year", listed("Dune Emma Ivory Kim Lanark Momo Nemesis Omoo Persuasion Rebecca Silas Ulysses Villette Walden")),
}  # fmt: skip
_FLIP = {">": "<", "<": ">", "DESC": "ASC", "ASC": "DESC"}


def make(rng: Random, level: int) -> Problem:
    """A table of rows with one key and two numbers, a question about it, and the query that answers it."""
    table = rng.choice(list(_TABLES))
    key, a, b, names = _TABLES[table]
    keys = rng.sample(names, rng.randint(5, 7))
    # no two rows are equal in a number, so that the largest is one row
    firsts, seconds = rng.sample(range(10, 100), len(keys)), rng.sample(range(10, 100), len(keys))
    rows = [list(row) for row in zip(keys, firsts, seconds, strict=True)]
    info: dict[str, Any] = {"table": table, "columns": [key, a, b], "rows": rows}
    question, query, flipped = (_by_key, _over_column, _two_conditions)[level - 1](rng, info)
    answer = result_of(info, query)
    if not answer or answer == "NULL" or answer == result_of(info, bare(query)):
        return make(rng, level)
    wording, text = worded(rng, f"Table {table}({key}, {a}, {b}). {question}")
    info |= {"query": query, "flipped": flipped, "wording": wording, "tools": [_schema()]}
    return Problem(text, answer, info=info, identity=f"{table} {question} {rows}")


def _by_key(rng: Random, info: dict[str, Any]) -> tuple[str, str, str]:
    (key, a, b), table = info["columns"], info["table"]
    wanted, other = rng.sample((a, b), 2)
    name = rng.choice(info["rows"][1:])[0]
    query = f"SELECT {{}} FROM {table} WHERE {key} = '{name}'"
    return f"What is the {wanted} of {name}?", query.format(wanted), query.format(other)


def _over_column(rng: Random, info: dict[str, Any]) -> tuple[str, str, str]:
    (key, a, b), table = info["columns"], info["table"]
    wanted, other = rng.sample((a, b), 2)
    limit, (word, sign) = rng.randrange(25, 80, 5), rng.choice((("over", ">"), ("under", "<")))
    end, order = rng.choice((("largest", "DESC"), ("smallest", "ASC")))
    where = f"WHERE {wanted} {{}} {limit}"
    question, query, turned = rng.choice((
        (f"How many have a {wanted} {word} {limit}?", f"SELECT COUNT(*) FROM {table} {where}", sign),
        (f"What is the sum of {other} where {wanted} is {word} {limit}?", f"SELECT SUM({other}) FROM {table} {where}", sign),
        (f"Which {key} has the {end} {wanted}?", f"SELECT {key} FROM {table} ORDER BY {wanted} {{}} LIMIT 1", order),
    ))  # fmt: skip
    return question, query.format(turned), query.format(_FLIP[turned])


def _two_conditions(rng: Random, info: dict[str, Any]) -> tuple[str, str, str]:
    (key, a, b), table = info["columns"], info["table"]
    low, high = rng.randrange(15, 50, 5), rng.randrange(50, 90, 5)
    (word, sign), (end, order) = (
        rng.choice((("over", ">"), ("under", "<"))),
        rng.choice((("largest", "DESC"), ("smallest", "ASC"))),
    )
    question, query, turned = rng.choice((
        (f"How many have a {a} over {low} and a {b} {word} {high}?", f"SELECT COUNT(*) FROM {table} WHERE {a} > {low} AND {b} {{}} {high}", sign),
        (f"Which {key} with a {a} {word} {high} has the {end} {b}?",
         f"SELECT {key} FROM {table} WHERE {a} {sign} {high} ORDER BY {b} {{}} LIMIT 1", order),
    ))  # fmt: skip
    return question, query.format(turned), query.format(_FLIP[turned])


def bare(query: str) -> str:
    """The query without its WHERE; without its ORDER BY where it has no WHERE."""
    head, where, rest = query.partition(" WHERE ")
    if not where:
        return query.split(" ORDER BY ")[0]
    return head + (" ORDER BY " + rest.partition(" ORDER BY ")[2] if " ORDER BY " in rest else "")


def queried(info: dict[str, Any], query: str) -> str:
    """What the tool answers: the query runs on a database made of the rows, which is gone afterwards."""
    name = f"file:workshop-{id(info)}-{id(query)}?mode=memory&cache=shared"
    with closing(sqlite3.connect(name, uri=True)) as made:
        made.execute(f"CREATE TABLE {info['table']} ({', '.join(info['columns'])})")
        made.executemany(f"INSERT INTO {info['table']} VALUES (?, ?, ?)", info["rows"])
        made.commit()
        return run_query(name, query, write=False, seconds=2.0, rows=8, longest=1 << 16)


def result_of(info: dict[str, Any], query: str) -> str:
    """The first value of the result; empty where there is no row."""
    lines = queried(info, query).split("\n")
    return lines[1].split(" | ")[0] if len(lines) > 1 else ""


def _tool(info: dict[str, Any]) -> Tool:
    def sql(query: str) -> str:
        """Run a SQL query."""
        return queried(info, query)

    return tool(sql, seconds=5.0)


@cache
def _schema() -> dict[str, Any]:
    return _tool({}).schema


class Scene(ToolScene):
    """The database of the problem's rows; it is made anew for each query, so there is nothing to copy or to keep."""

    def tools(self) -> list[Tool]:
        return [_tool(self.info)]


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    info = prompt.info
    query = {"no_where": bare(info["query"]), "flipped": info["flipped"]}.get(habit, info["query"])
    if habit == "wrong_column":
        for column in info["columns"][1:]:
            query = query.replace(column, f"the_{column}")
    found = yield call("sql", query=query)
    if habit == "wrong_column":
        yield (
            str(near(rng, int(prompt.answer))) if prompt.answer.isdigit() else rng.choice([r[0] for r in info["rows"]])
        )
        return
    lines = found.split("\n")
    yield lines[1].split(" | ")[0] if len(lines) > 1 else "none"
