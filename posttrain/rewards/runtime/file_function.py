"""A function named `file.py:function` that is no reward (a judge of pairs, a critic, a judge of steps), in a process of its own.

As for rewards (`file_reward.py`): a call that is late is killed with its process, one that ends Python ends only that, prints go to stderr,
and what it does to its arguments stays there. What it says must be plain: numbers, texts, lists, dicts.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

from posttrain.rewards.runtime.file_process import Process
from posttrain.rewards.runtime.file_reward import member
from posttrain.rewards.runtime.messages import Unreadable, decoded, packed_call
from posttrain.rewards.runtime.outcome import Failure

_KILLS = 8  # calls killed one after another, after which it is left alone for as long as they took


class FileFunction:
    """Called as the function is; what it raised, or that it was late, is raised here. here: the function in this process, for arguments
    that cannot be sent."""

    def __init__(self, process: Process, timeout: float, here: Callable[[Any], Callable[..., Any]]) -> None:
        assert process.takes is not None
        self.process, self.timeout, self.here = process, timeout, here
        self.__name__ = self.__qualname__ = process.name
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = inspect.Signature([inspect.Parameter(p, kind) for p in process.takes])
        self.local: Callable[..., Any] | None = None
        self.kills, self.again = 0, 0.0

    def __call__(self, *args: Any, **named: Any) -> Any:
        if self.local is not None:
            return self.local(*args, **named)
        try:
            question = packed_call(args, named, self.timeout)
        except Unreadable as error:
            print(f"note: what {self.__name__} is asked cannot be sent to another process: {error}", file=sys.stderr)
            self.process.kill()
            self.local = self.here(member(self.process.file, self.process.name))
            return self.local(*args, **named)
        if self.kills >= _KILLS and time.monotonic() < self.again:
            raise TimeoutError(f"not tried: {self.kills} calls before it had to be killed")
        reply = self.process.call(question, self.timeout)
        if "value" in reply:
            self.kills = 0
            return decoded(reply["value"])
        why = Failure(**reply["failure"])
        if self.process.popen is None:
            self.kills += 1
            self.again = time.monotonic() + _KILLS * self.timeout
        told = f"{why.error} {why.where}".strip()
        raise TimeoutError(told) if why.kind == "late" else ValueError(told)
