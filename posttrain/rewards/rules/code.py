"""The program passes its tests, in a sandbox."""

from __future__ import annotations

import ast
import os
import re
from functools import cache

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError, unknown
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.sandbox.available import sandbox
from posttrain.sandbox.grade import grade
from posttrain.sandbox.row_tests import Exchange, read_tests
from posttrain.sandbox.types import LANGUAGES, Limits, Program, Sandbox

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+#-]*)[^\n]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


@reward(title="Code that passes its tests")
def code(
    prompt: Prompt, text: str, language: str = "python", partial: bool = False, seconds: float = 6.0, memory: int = 512,
    allow_unsafe_code: bool = False,
) -> float:  # fmt: skip
    """Code that passes its tests: 1 when the program of an answer passes all tests of its row, else 0.

    r = [passed == total];  with partial=True: r = passed / total
    The program is the last code block of the answer (else all of it). It runs in a sandbox, and expected values stay outside. Tests
    come with the row: `tests` or `test_list` (assert statements, or {input, output} of stdin and stdout), `test` with `entry_point`, or
    `input_output`. All tests of an answer have `seconds` together and `memory` MB; what is not done by then has failed. A
    sandbox that cannot be made is refused before the run; allow_unsafe_code=True runs programs unisolated, with your rights.
    """
    tests = read_tests(prompt.info)
    source = program_of(prompt, text, tests.entry)
    if not source:
        return 0.0
    if language != "python" and not all(isinstance(t, Exchange) for t in tests.each):
        raise ValueError(
            f"tests that call functions are for Python; a program in {language} is tested by input and output"
        )
    limits = Limits(
        seconds=seconds, cpu=max(seconds, 1.0), memory=memory << 20, processes=16 if language == "python" else 64
    )
    found = grade(box_of(os.getpid(), allow_unsafe_code), Program(language, source), tests, limits)
    return found.passed / found.total if partial else float(found.passed == found.total)


def program_of(prompt: Prompt, text: str, entry: str = "") -> str:
    """The program of an answer. Where a function is asked for by its head (HumanEval), the question's code stands before it."""
    if final_answer(text) is None:
        return ""
    tail = text.rpartition("</think>")[2]
    blocks = _FENCE.findall(tail)
    source: str = blocks[-1][1] if blocks else tail
    if not source.strip() or not entry or not _parses(prompt.last):
        return source.strip() and source
    head = prompt.last.rstrip() + "\n"
    return f"{head}\n{source}" if re.search(rf"^def {re.escape(entry)}\b", source, re.MULTILINE) else head + source


def _parses(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


@cache
def box_of(process: int, allow_unsafe_code: bool) -> Sandbox:
    """The sandbox of this process: a fork must not give orders to its parent's interpreter."""
    return sandbox(allow_unsafe_code)


def ready(language: str = "python", seconds: float = 6.0, allow_unsafe_code: bool = False, **_: object) -> None:
    """Refuse to start without a sandbox, or with a language that it does not run."""
    if language not in LANGUAGES:
        raise unknown("language", language, LANGUAGES)
    if seconds <= 0:
        raise UserError(f"code takes seconds > 0, got {seconds}")
    box = sandbox(allow_unsafe_code)
    if language != "python":
        box.run(Program(language, ""), Limits(processes=64))


def validate() -> list[str]:
    """Gold passes, corrupted fails."""
    double = Prompt.text("code", "Write double(x).", tests=["assert double(2) == 4", "assert double('a') == 'aa'"])
    echo = Prompt.text("stdin", "Print the number you read.", tests=[{"input": "7\n", "output": "7"}])
    good = "Here:\n```python\ndef double(x):\n    return x * 2\n```"
    return problems(
        code,
        [(double, good, good.replace("x * 2", "4")), (double, good, "exit(0)"), (echo, "print(input())", "print(8)")],
    )
