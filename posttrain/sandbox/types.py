"""Programs that nobody has read, the limits they run under, and what came of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from posttrain.core.errors import UserError, unknown

LANGUAGES = ("python", "bash", "c", "javascript")


class SandboxBroken(RuntimeError):
    """The sandbox failed, not the program: whoever asked has no answer, which is not a wrong answer."""


@dataclass(frozen=True)
class Program:
    """A program with the files beside it and what it reads from stdin."""

    language: str
    source: str
    files: Mapping[str, bytes] = field(default_factory=dict)  # name -> content, in the program's own folder
    stdin: bytes = b""

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise unknown("language", self.language, LANGUAGES)
        for name in self.files:
            if not name or "/" in name or "\0" in name or name in (".", "..") or name.startswith(("main.", ".stdin")):
                raise UserError(
                    f"a program's file has a plain name other than main.* and .stdin, without folders; got {name!r}"
                )


@dataclass(frozen=True)
class Limits:
    """What a program may use; more than that ends it, and `Finished.why` says which."""

    seconds: float = 10.0  # by the clock on the wall
    cpu: float = 10.0  # seconds of one core, rounded up
    memory: int = 512 << 20  # bytes
    disk: int = 64 << 20  # bytes of its own folder; a file has at most as many
    output: int = 1 << 20  # bytes of stdout and stderr together
    processes: int = 16  # threads, or processes where a language has them
    files: int = 128  # that are open at once

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 < value <= 1 << 44:
                raise UserError(f"the limit {name} is a number above 0, got {value!r}")


USUAL = Limits()


@dataclass(frozen=True)
class Finished:
    """What came of a program. `why` is "ended" where it ended by itself; else which limit or signal ended it."""

    stdout: str
    stderr: str
    exit: int | None
    seconds: float
    why: str = "ended"

    @property
    def ok(self) -> bool:
        """It ended by itself, with 0: which says nothing about its being right."""
        return self.why == "ended" and self.exit == 0


class Conversation(Protocol):
    """A program that is being talked to in frames of bytes; it sees one at a time."""

    def ask(self, frame: bytes | None) -> bytes | None: ...  # its reply; None when it has ended or a limit has ended it
    def close(self) -> Finished: ...  # ends it, if it has not


class Sandbox(Protocol):
    """Runs programs where they can do no harm."""

    def run(self, program: Program, limits: Limits = USUAL) -> Finished: ...
    def talk(self, program: Program, limits: Limits = USUAL, mode: str = "calls") -> Conversation: ...
