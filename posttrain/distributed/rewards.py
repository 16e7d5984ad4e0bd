"""Rewards of single answers, computed by a pool of processes: a reward that holds the interpreter holds nobody else.

Answers are given out in pieces and come back in their order, so any number of processes gives the same rewards. A process that dies or
hangs takes its piece with it: the piece is asked again answer by answer, and the answer at which one dies again is masked and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future

from posttrain.core.errors import UserError
from posttrain.distributed.pool import Lost, Pool
from posttrain.rewards.runtime.conventions import Answers
from posttrain.rewards.runtime.outcome import Failure, Outcome
from posttrain.runs.wire import Unsendable, pack, unpack

_EACH = 4  # pieces for each process, so that a slow one does not hold the others
_THREADS = 8  # calls side by side in a process, as RewardSum has them
_GRACE = 5.0  # seconds beyond its calls' own limits before a process is taken to hang


class RewardPool:
    """Gives answers out to workers of the role `reward`; `RewardSum` asks it in place of its own process."""

    def __init__(self, pool: Pool, workers: int, timeout: float) -> None:
        self.pool, self.workers, self.timeout = pool, workers, timeout

    def begin(self, name: str, answers: Answers) -> Callable[[], list[Outcome]]:
        """Give the answers out; what is returned waits for the outcomes."""
        n = len(answers.texts)
        pieces = min(n, self.workers * _EACH)
        ends = [n * i // pieces for i in range(pieces + 1)] if pieces else [0]
        asked = [(a, b, self._ask(name, answers, a, b)) for a, b in zip(ends, ends[1:], strict=False)]
        return lambda: [x for a, b, future in asked for x in self._wait(name, answers, a, b, future)]

    def _ask(self, name: str, answers: Answers, a: int, b: int) -> Future[bytes]:
        asked = {"do": "score", "name": name, "prompts": list(answers.prompts[a:b]), "texts": list(answers.texts[a:b])}
        try:
            message = pack(asked)
        except Unsendable as error:
            raise UserError(
                f"the prompts hold {error}, which cannot be sent to another process; leave --reward-workers away"
            ) from None
        longest = self.timeout * math.ceil((b - a) / _THREADS) + _GRACE
        return self.pool.submit((a,), message, f"answers {a} to {b - 1} for the reward {name}", longest)

    def _wait(self, name: str, answers: Answers, a: int, b: int, future: Future[bytes]) -> list[Outcome]:
        try:
            found: list[Outcome] = unpack(future.result())
            return found
        except Lost as error:
            if b - a == 1:
                return [Failure("late" if "said nothing" in error.why else "raised", f"its process {error.why}")]
        singles = [(i, self._ask(name, answers, i, i + 1)) for i in range(a, b)]
        return [x for i, single in singles for x in self._wait(name, answers, i, i + 1, single)]

    def close(self) -> None:
        self.pool.close()
