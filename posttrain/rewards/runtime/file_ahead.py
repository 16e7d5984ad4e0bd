"""Rewards of files, begun as answers end: what has ended while their process was busy is its next question.

The process is asked what `FileReward.outcomes` would have asked it later, with the same time limits; results are taken in the order
of the answers. A reward that takes all answers at once is not begun here.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress

from posttrain.core.prompt import Prompt
from posttrain.rewards.runtime.conventions import Answers, part
from posttrain.rewards.runtime.file_reward import FileReward, Kills, beside
from posttrain.rewards.runtime.outcome import Outcome

Ended = tuple[Prompt, int, Callable[[], str]]  # the prompt, which of its answers, and what decodes it
Key = tuple[str, int, str]  # of a prompt, an answer and its text


class FileAhead:
    """One reward of a file. `begin` as each answer ends, then `wait_for` all of them."""

    def __init__(self, reward: FileReward, timeout: float, workers: int) -> None:
        self.reward, self.timeout, self.workers = reward, timeout, workers
        self.queue: list[Ended] = []
        self.changed = threading.Condition()
        self.asking = False
        self._new()

    def _new(self) -> None:
        self.found: defaultdict[Key, deque[Outcome]] = defaultdict(deque)
        self.kills = Kills()
        self.wrong: BaseException | None = None

    def begin(self, prompt: Prompt, index: int, text: Callable[[], str]) -> None:
        """Grade it as soon as the process is free. `text` decodes it, in the thread that asks."""
        with self.changed:
            self.queue.append((prompt, index, text))
            if not self.asking:
                self.asking = True
                threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while True:
            with self.changed:
                if not self.queue or self.wrong is not None:
                    self.asking = False
                    self.changed.notify_all()
                    return
                some, self.queue = self.queue, []
            try:
                self._ask(some)
            except BaseException as error:  # told where the answers are waited for
                self.wrong = error

    def _ask(self, some: list[Ended]) -> None:
        ended: list[tuple[Prompt, int, str]] = []
        for prompt, index, text in some:
            with suppress(Exception):  # one that cannot be decoded is graded with the answers that were not begun
                ended.append((prompt, index, text()))
        answers = Answers([p for p, _, _ in ended], [t for _, _, t in ended], lambda: [[] for _ in ended])
        outcomes = self.reward.outcomes(answers, self.timeout, self.workers, self.kills)
        for (prompt, index, said), outcome in zip(ended, outcomes, strict=True):
            self.found[prompt.id, index, said].append(outcome)

    def wait_for(self, answers: Answers) -> Callable[[], list[Outcome]]:
        """Begin what was not begun, or has another text by now; what is returned waits for the outcomes of all answers."""
        return beside(lambda: self._outcomes(answers))

    def _outcomes(self, answers: Answers) -> list[Outcome]:
        with self.changed:
            self.queue = []  # what has not been asked yet is asked at once, below
            while self.asking:
                self.changed.wait()
        try:
            if self.wrong is not None:
                raise self.wrong
            keys = zip((p.id for p in answers.prompts), answers.index, answers.texts, strict=True)
            out = {i: self.found[key].popleft() for i, key in enumerate(keys) if self.found.get(key)}
            left = [i for i in range(len(answers.texts)) if i not in out]
            fresh = self.reward.outcomes(part(answers, left), self.timeout, self.workers, self.kills) if left else []
            out |= dict(zip(left, fresh, strict=True))
            return [out[i] for i in range(len(answers.texts))]
        finally:
            self._new()  # nothing is kept from step to step
