"""Which systems a file of tests runs, read from its syntax: the names that reach `traced(...)` or `pt.run(method=...)`.

A name may stand there itself, or be a constant, an element of a loop or of `parametrize`, or the argument of a helper that passes it
on. What is called within `pytest.raises` is refused, not run, and does not count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

Env = dict[str, list[ast.expr]]  # what a name may stand for
RUNNERS = {
    "traced": (0, "name"),
    "run": (None, "method"),
    "pt.run": (None, "method"),
    "posttrain.run": (None, "method"),
}
METHOD = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*(?=$|\()")


def names_run(file: Path) -> set[str]:
    """Names of methods and plans with which the tests of a file call what runs them."""
    tree = ast.parse(file.read_text())
    functions = {f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}
    outside = bound([x for x in tree.body if not isinstance(x, ast.FunctionDef | ast.ClassDef)], {})
    envs = {name: bound([f], outside) for name, f in functions.items()}
    runners = {k: v for k, v in RUNNERS.items() if k not in functions}
    found: set[str] = set()
    while True:
        passed = dict(runners)
        for name, f in functions.items():
            for text in reaching(f, runners, envs[name]):
                if isinstance(text, str):
                    found |= {m.group() for m in [METHOD.match(text)] if m}
                elif text.arg in (given := [a.arg for a in f.args.args + f.args.kwonlyargs]):
                    passed[name] = (given.index(text.arg), text.arg)
        if passed == runners:
            return found
        runners = passed


def reaching(f: ast.FunctionDef, runners: dict[str, tuple[int | None, str]], env: Env) -> Iterator[str | ast.arg]:
    """What the calls of runners within a function are given as the name; a parameter where its callers say it."""
    for call in calls(f):
        place, word = runners.get(ast.unparse(call.func), (None, ""))
        if place is not None and place < len(call.args):
            yield from texts(call.args[place], env)
        for k in call.keywords if word else ():
            if k.arg == word:
                yield from texts(k.value, env)
            for d in values(k.value, env) if k.arg is None else ():  # run(**how)
                yield from [t for key, x in pairs(d) if literal(key) == word for t in texts(x, env)]


def calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls within a node, those that are expected to raise left out."""
    if isinstance(node, ast.With) and any("pytest.raises" in ast.unparse(i.context_expr) for i in node.items):
        return
    if isinstance(node, ast.Call):
        yield node
    for child in ast.iter_child_nodes(node):
        yield from calls(child)


def texts(node: ast.expr, env: Env) -> Iterator[str | ast.arg]:
    """The strings that an expression may be, or how they begin."""
    if isinstance(node, ast.JoinedStr):
        first, *rest = node.values
        tail = "".join(literal(x) or "" for x in rest)
        for head in texts(first.value if isinstance(first, ast.FormattedValue) else first, env):
            yield head + tail if isinstance(head, str) else head
    elif isinstance(node, ast.BinOp):
        yield from texts(node.left, env)
    elif isinstance(node, ast.IfExp):
        yield from (t for x in (node.body, node.orelse) for t in texts(x, env))
    elif isinstance(node, ast.Subscript):
        yield from texts(node.value, env)
    elif isinstance(node, ast.Call):  # name.replace(...), named("gkd", ...)
        of = node.func.value if isinstance(node.func, ast.Attribute) else next(iter(node.args), None)
        yield from texts(of, env) if of is not None else ()
    elif isinstance(node, ast.Name):
        known = values(node, env)
        yield from (t for x in known for t in texts(x, env)) if known else [ast.arg(node.id)]
    elif literal(node) is not None:
        yield str(literal(node))


def values(node: ast.expr, env: Env) -> list[ast.expr]:
    """What a name stands for; anything else stands for itself."""
    if not isinstance(node, ast.Name):
        return [node]
    rest = {k: v for k, v in env.items() if k != node.id}  # no name explains itself
    return [y for x in env.get(node.id, ()) for y in values(x, rest)]


def elements(node: ast.expr, env: Env) -> Iterator[ast.expr]:
    """What a loop over an expression goes through."""
    for x in values(node, env):
        if isinstance(x, ast.List | ast.Tuple | ast.Set):
            for e in x.elts:
                yield from elements(e.value, env) if isinstance(e, ast.Starred) else [unwrapped(e)]
        elif isinstance(x, ast.Dict):
            yield from (key for key, _ in pairs(x))
        elif isinstance(x, ast.BinOp):
            yield from (e for side in (x.left, x.right) for e in elements(side, env))
        elif isinstance(x, ast.Call) and isinstance(x.func, ast.Attribute) and x.func.attr == "items":
            whole = [p for d in values(x.func.value, env) for p in pairs(d)]
            yield from (ast.Tuple(elts=list(two), ctx=ast.Load()) for two in whole)
        elif isinstance(x, ast.Call) and x.args:  # sorted(...), zip and product are not read
            yield from elements(x.args[0], env)


def unwrapped(node: ast.expr) -> ast.expr:
    """The values of pytest.param(...)."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.param":
        return node.args[0] if len(node.args) == 1 else ast.Tuple(elts=node.args, ctx=ast.Load())
    return node


def pairs(node: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.Dict):
        return []
    return [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]


def literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


# ---- what names stand for


def bound(nodes: list[ast.stmt], outside: Env) -> Env:
    """The names that statements bind, over those from outside."""
    env = {k: list(v) for k, v in outside.items()}
    for x in (x for node in nodes for x in ast.walk(node)):
        if isinstance(x, ast.Assign):
            bind(x.targets[0], x.value, env)
        elif isinstance(x, ast.AnnAssign) and x.value is not None:
            bind(x.target, x.value, env)
        elif isinstance(x, ast.For | ast.comprehension):
            each(x.target, x.iter, env)
        elif isinstance(x, ast.FunctionDef):
            for mark in x.decorator_list:
                parametrized(mark, env)
    return env


def parametrized(mark: ast.expr, env: Env) -> None:
    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.parametrize":
        words = literal(mark.args[0])
        told = words.split(",") if words else [str(literal(x)) for x in elements(mark.args[0], env)]
        names = [ast.Name(w.strip()) for w in told]
        each(names[0] if len(names) == 1 else ast.Tuple(elts=list(names)), mark.args[1], env)


def each(target: ast.expr, over: ast.expr, env: Env) -> None:
    for e in list(elements(over, env)):
        bind(target, e, env)


def bind(target: ast.expr, value: ast.expr, env: Env) -> None:
    if isinstance(target, ast.Name):
        env.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, x in zip(target.elts, value.elts, strict=False):
            bind(one, x, env)
