"""The grader of programs. Expected values never enter the sandbox of the program that they judge.

A call goes in as a frame and its value comes back as plain data under the call's own random number; the comparison is made
here. Tests that are code run in a second sandbox, which asks for each call through here. So there is no exit code to forge, no
word to print, nothing to search for in memory, and what a program patches is only its own.
"""

from __future__ import annotations

import marshal
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any

from posttrain.sandbox.row_tests import Call, Exchange, Script, Tests
from posttrain.sandbox.types import Conversation, Limits, Program, Sandbox
from posttrain.sandbox.values import loads, pack, unpack


@dataclass(frozen=True)
class Grade:
    """How many tests a program passed, and why the first of the others failed."""

    passed: int
    total: int
    why: str = ""


class Silent(Exception):
    """The program gives no more answers: it has ended, was ended, or sent something that is no answer."""


class Subject:
    """The program under test, as something that is asked."""

    def __init__(self, talk: Conversation) -> None:
        self.talk = talk
        self.gone = ""

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """{"value"} or {"error": [kind, text]}; after one reply that is none it is asked nothing more."""
        if self.gone:
            raise Silent(self.gone)
        number = secrets.token_hex(8)
        frame = self.talk.ask(marshal.dumps({**question, "id": number}, 4))
        try:
            if frame is None:
                raise ValueError(f"it ended ({self.talk.close().why})")
            return _reply(loads(frame), number)
        except ValueError as error:
            self.gone = str(error)
            raise Silent(self.gone) from None


def _reply(reply: Any, number: str) -> dict[str, Any]:
    if not isinstance(reply, dict) or reply.get("id") != number:
        raise ValueError("it sent a reply to a question that was not asked")
    if "error" in reply:
        kind, text = (str(x)[:500] for x in list(reply["error"])[:2])
        return {"error": [kind, text]}
    unpack(reply.get("value"))  # nothing but plain data goes on from here
    return {"value": reply.get("value")}


def grade(box: Sandbox, program: Program, tests: Tests, limits: Limits) -> Grade:
    """Run the tests; all of them together have `limits.seconds`, and those that time does not reach have failed."""
    due = time.monotonic() + limits.seconds
    told: list[str] = []
    exchanges = [t for t in tests.each if isinstance(t, Exchange)]
    for test in exchanges:
        left = due - time.monotonic()
        told.append(
            _exchanged(box, program, test, replace(limits, seconds=left)) if left > 0 else "there was no time left"
        )
    if len(exchanges) < len(tests.each):
        subject = Subject(box.talk(program, limits))
        try:
            told += [_called(subject, t) for t in tests.each if isinstance(t, Call)]
            scripts = [t.source for t in tests.each if isinstance(t, Script)]
            told += _scripted(box, subject, [tests.setup, *scripts], limits) if scripts else []
        finally:
            subject.talk.close()
    return Grade(told.count(""), len(told), next((t for t in told if t), ""))


def _exchanged(box: Sandbox, program: Program, test: Exchange, limits: Limits) -> str:
    done = box.run(replace(program, stdin=test.stdin.encode()), limits)
    if not done.ok:
        return f"{done.why if done.why != 'ended' else f'exit {done.exit}'}: {done.stderr.strip()[-200:]}"
    return "" if _lines(done.stdout) == _lines(test.stdout) else f"printed {done.stdout.strip()[:80]!r}"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _called(subject: Subject, test: Call) -> str:
    """Whether a call returned the value, as Python compares plain data: types of containers count, 1 == 1.0 == True."""
    asked = {"name": test.name, "args": pack(test.args, _data), "kwargs": pack(test.kwargs, _data)}
    try:
        reply = subject.ask(asked)
    except Silent as gone:
        return str(gone)
    if "error" in reply:
        return ": ".join(reply["error"])
    return "" if unpack(reply["value"]) == test.expected else f"{test.name} returned {reply['value']!r:.80}"


def _data(thing: Any) -> int:
    raise ValueError(f"the arguments of a test are plain data, got {type(thing).__name__}")


def _scripted(box: Sandbox, subject: Subject, scripts: list[str], limits: Limits) -> list[str]:
    """Tests that are code, in a sandbox of their own; the first of `scripts` is what they need, and counts for nothing."""
    talk = box.talk(Program("python", repr(scripts)), limits, "tests")
    try:
        frame = talk.ask(None)
        while frame is not None:
            message = loads(frame)
            if "told" in message:
                return [str(t) for t in message["told"][1:]]
            try:
                reply = subject.ask(message["ask"])
            except Silent as gone:
                reply = {"error": ["RuntimeError", f"the program gives no answer: {gone}"]}
            frame = talk.ask(marshal.dumps(reply, 4))
    finally:
        done = talk.close()
    if done.why in ("wall time", "CPU time"):  # it waited for the program
        return ["there was no time left"] * (len(scripts) - 1)
    raise ValueError(f"the tests of this row do not run: {done.why}, {done.stderr.strip()[-200:]}")
