"""A reward named `file.py:function` runs in a process of its own, so that nothing in it can hold or end a run.

A call that keeps the interpreter to itself (a regular expression that backtracks for ever) is killed with its process and counted
as late; so is, before the next question, a process in which a late call is still running. The next call starts a new process, which
imports the file again. So module-level state of such a reward lasts from call to call and from step to step, but is lost when a
call is killed; it is never saved in a checkpoint. Prints go to stderr, with control characters made visible. What a reward started
ends with its process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posttrain.core.errors import unknown
from posttrain.core.prompt import Prompt
from posttrain.core.python_file import import_file
from posttrain.rewards.runtime.conventions import Answers, part
from posttrain.rewards.runtime.file_process import Process
from posttrain.rewards.runtime.outcome import Failure, Outcome

_KILLS = 8  # calls killed in one scoring, after which the rest are not tried


@dataclass
class Kills:
    """How many calls were killed in one scoring."""

    count: int = 0


class FileReward:
    """A function in a file of the user, called in a worker process. `outcomes` scores answers; it is also a plain reward."""

    def __init__(self, file: str, name: str) -> None:
        self.file, self.__name__, self.name = file, name, name
        self.process = Process(file, name)
        self.timeout = 10.0  # of a single call: RewardSum says its own

    def __call__(self, prompt: Prompt, text: str) -> float:
        (found,) = self.outcomes(Answers([prompt], [text], lambda: [[]]), self.timeout, 1)
        if isinstance(found, Failure):
            raise TimeoutError(found.error) if found.kind == "late" else ValueError(f"{found.error} {found.where}")
        return float("nan") if found is None else found

    def begin(self, answers: Answers, timeout: float, workers: int) -> Callable[[], list[Outcome]]:
        """Begin scoring beside whatever else runs; what is returned waits for the outcomes."""
        return beside(lambda: self.outcomes(answers, timeout, workers))

    def outcomes(self, answers: Answers, timeout: float, workers: int, kills: Kills | None = None) -> list[Outcome]:
        """What the reward says of each answer. Those whose process was killed are late, or asked again one at a time where it
        is not clear which of them it was."""
        done: dict[int, Outcome] = {}
        left, kills = list(range(len(answers.texts))), kills or Kills()
        while left:
            if kills.count >= _KILLS:
                done |= {
                    i: Failure("late", f"not tried: {kills.count} answers before it had to be killed") for i in left
                }
                break
            some = part(answers, left)
            told = self.process.ask(some, timeout, workers)
            done |= {left[i]: x for i, x in told.finished.items()}
            if told.killed is not None:
                kills.count += 1
                done |= {left[i]: told.killed for i in told.guilty(self.process.asynchronous)}
                workers = 1  # the next one to hang is alone
            left = [i for i in left if i not in done]
        return [done[i] for i in range(len(answers.texts))]


def beside(work: Callable[[], list[Outcome]]) -> Callable[[], list[Outcome]]:
    """Begin it in a thread; what is returned waits for what it returns, or raises what it raised."""
    found: list[list[Outcome]] = []
    wrong: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            wrong.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> list[Outcome]:
        thread.join()
        if wrong:
            raise wrong[0]
        return found[0]

    return wait


def member(file: str, name: str) -> Any:
    """What a file of the user calls by a name; the nearest one in the error where there is none."""
    module = import_file(file, f"--reward {file}:{name}")
    made = {k for k, x in vars(module).items() if callable(x) and getattr(x, "__module__", "") == module.__name__}
    if name not in vars(module):
        raise unknown(f"function in {file}", name, made)
    return getattr(module, name)
