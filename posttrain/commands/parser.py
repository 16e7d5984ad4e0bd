"""Command-line options, on top of argparse: errors of one sentence with the nearest name, and no abbreviations."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import functools
import inspect
import itertools
import math
import shutil
import textwrap
import types
import typing
from collections.abc import Callable
from typing import Any, NoReturn

from posttrain.core.config import Config
from posttrain.core.errors import UserError, nearest
from posttrain.core.sampling import Sampling
from posttrain.core.typed import shown


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises a UserError for a mistake in the command."""

    def __init__(self, prog: str, title: str, doc: str) -> None:
        width = min(shutil.get_terminal_size().columns, 110)
        super().__init__(
            prog=prog, description=title[:1].upper() + title[1:] + ".", epilog=doc, allow_abbrev=False,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=34, width=width),
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        message = message.removeprefix("argument ").replace("expected one argument", "a value is missing")
        raise UserError(f"{message}; see {self.prog} --help")

    def format_help(self) -> str:
        """The help page, with a usage of one line: the options are listed below it."""
        places = " ".join(str(a.metavar or a.dest) for a in self._actions if not a.option_strings)
        self.usage = f"{self.prog} {places} [options]".replace("  ", " ")
        return super().format_help()

    def names(self) -> list[str]:
        """Every long option."""
        return [o for action in self._actions for o in action.option_strings if o.startswith("--")]


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """The options; an unknown one is an error that suggests the nearest. `--max_norm` is `--max-norm`."""
    tools, argv = take(argv, "--tools.") if "--tools" in parser.names() else ({}, argv)
    args, extra = parser.parse_known_args([dashed(a) for a in argv])
    if tools:
        args.tools = used_so(getattr(args, "tools", None) or "", tools)
    for word in extra:
        if word.startswith("-"):
            name = word.partition("=")[0]
            inner = [
                o for o in parser.names() if o.endswith("." + name.lstrip("-"))
            ]  # --max-tokens: --sampling.max-tokens
            close = inner[0] if inner else nearest(name, parser.names())
            hint = f"did you mean {close}?" if close else f"see {parser.prog} --help"
            raise UserError(f"{parser.prog} has no option {name}; {hint}")
        raise UserError(f"{parser.prog} does not know what to do with {word!r}; see {parser.prog} --help")
    return args


def used_so(spec: str, options: dict[str, str]) -> str:
    """The tools of --tools with how they may be used: `--tools mine.py --tools.max-turns 4` is `--tools "mine.py(max_turns=4)"`."""
    from posttrain.tools.named import check_option, with_options

    first = next(iter(options)).replace("_", "-")
    if not spec:
        raise UserError(f"--tools.{first} says how tools may be used; name them too: --tools mine.py")
    given: dict[str, typing.Any] = {}
    for name, text in options.items():
        check_option(name)
        try:
            given[name] = ast.literal_eval(text)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            given[name] = text
    return with_options(spec, given)


def take(argv: list[str], prefix: str) -> tuple[dict[str, str], list[str]]:
    """Options that begin with a prefix (the options of a plan are known only once the plan is found), and all other words."""
    taken, rest = {}, []
    words = iter(argv)
    for word in words:
        if not word.startswith(prefix):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix(prefix).partition("=")
        value = value if equals else next(words, "")
        if not value:
            raise UserError(f"{word} has no value; write {word} VALUE")
        taken[name.replace("-", "_")] = value
    return taken, rest


def dashed(word: str) -> str:
    """Options may be written with underscores; values are left alone."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {shown(text)}") from None


def number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {shown(text)}") from None
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a finite number, got {shown(text)}")
    return value


READERS: dict[type, tuple[Callable[[str], Any], str]] = {int: (whole, "N"), float: (number, "X")}

# ---- the settings of a run as options


def config_options(parser: Parser, skip: tuple[str, ...] = ("method",)) -> None:
    """An option for every setting, nested ones as --sampling.max-tokens; only those given are in the namespace."""
    settings = parser.add_argument_group("settings")
    for field in dataclasses.fields(Config):
        if field.name in skip:
            continue
        if field.name == "sampling":
            group = parser.add_argument_group("how answers are sampled")
            for inner in dataclasses.fields(Sampling):
                add_setting(group, Sampling, inner, "sampling.")
        else:
            add_setting(settings, Config, field)


def add_setting(group: Any, kind: type, field: dataclasses.Field[Any], prefix: str = "") -> None:
    """One option, with the docstring under the field as its help."""
    flag = "--" + prefix + field.name.replace("_", "-")
    told = field_docs(kind)[field.name]
    told = told.replace("%", "%%").replace("None:", "if not given:")
    default = field.default
    if default not in (None, "", dataclasses.MISSING):
        told += f" [{default}]"
    common: dict[str, Any] = {"dest": prefix + field.name, "default": argparse.SUPPRESS, "help": told}
    plain = plain_type(field_types(kind)[field.name])
    if plain is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
    else:
        read, shown = READERS.get(plain, (str, "TEXT"))
        group.add_argument(flag, type=read, metavar=shown, **common)


def plain_type(hint: Any) -> Any:
    """int | None -> int: an option that is left out means None."""
    kinds = [k for k in typing.get_args(hint) if k is not type(None)] if isinstance(hint, types.UnionType) else [hint]
    return kinds[0]


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """field -> its type; to read the annotations of a class takes milliseconds, and there are 70 fields."""
    return typing.get_type_hints(kind)


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """field -> the docstring under it in the source, on one line: what a setting means is written once."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    out: dict[str, str] = {}
    for before, after in itertools.pairwise(definition.body):
        if not (isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            out[before.target.id] = " ".join(after.value.value.split())
    return out


def given(args: argparse.Namespace) -> dict[str, Any]:
    """The settings that were on the command line, nested as Config is."""
    plain = {f.name for f in dataclasses.fields(Config)} - {"sampling", "method"}
    inner = {f"sampling.{f.name}": f.name for f in dataclasses.fields(Sampling)}
    out: dict[str, Any] = {k: v for k, v in vars(args).items() if k in plain}
    nested = {inner[k]: v for k, v in vars(args).items() if k in inner}
    return out | ({"sampling": nested} if nested else {})
