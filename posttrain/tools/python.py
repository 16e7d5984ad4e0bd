"""A code interpreter: Python programs of a model, each in the sandbox."""

from __future__ import annotations

from posttrain.sandbox.available import sandbox
from posttrain.sandbox.types import Finished, Limits, Program
from posttrain.tools.tool import Tool, cut, tool

_ENDED = {"wall time": "it ran out of time", "CPU time": "it ran out of time", "output": "it printed too much", "memory": "it ran out of memory"}  # fmt: skip


def python(seconds: float = 5.0, memory: int = 512, allow_unsafe_code: bool = False) -> Tool:
    """The interpreter as a tool; where there is no sandbox it is refused here, with what to do. `memory` in MB."""
    box = sandbox(allow_unsafe_code)
    limits = Limits(seconds=seconds, cpu=max(seconds, 1.0), memory=memory << 20, output=1 << 16)

    def python(code: str) -> str:
        """Run a Python program (standard library, no network) and read what it prints. Nothing is kept for the next call.

        code: the whole program; print what you want to see
        """
        return observed(box.run(Program("python", code), limits), seconds)

    return tool(python, seconds=seconds + 15.0)  # the sandbox keeps the time; this is for a machine that is stuck


def observed(done: Finished, seconds: float) -> str:
    """What a model is told: what was printed, then errors, then what ended the program."""
    said = [
        cut(done.stdout.rstrip(), 2500),
        cut(done.stderr.rstrip()[-1000:], 1000),
    ]  # an error's last lines say the most
    if done.why != "ended":
        said.append(f"error: {_ENDED.get(done.why, f'it was ended by {done.why}')} (limit {seconds:g} s)")
    return "\n".join(filter(None, said)) or "(no output: print the result)"
