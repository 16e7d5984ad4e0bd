"""A run that workers can build from its settings: a model folder of 20k parameters, a file of questions, a file with a reward."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from posttrain.api import run_config
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.distributed import choose
from posttrain.distributed.pool import Died
from posttrain.distributed.worker import Worker
from posttrain.methods.grpo import grpo
from tests.models import tiny

REWARD = '''
def share(prompt, text):
    """The share of the asked letter."""
    return text.count(prompt.answer) / max(len(text), 1)
'''


def files(folder: Path) -> Path:
    """model/, questions.jsonl and mine.py in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny.saved(tiny.ours("llama"), folder / "model")
    rows = [{"question": f"write {c}{i}", "answer": c} for i in range(12) for c in "abcd"]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text(REWARD)
    return folder


def settings(files: Path, **changes: Any) -> Config:
    plain: dict[str, Any] = {
        "name": "small", "steps": 5, "prompts": 4, "lr": 3e-3, "warmup": 2, "save_every": 2, "threads": 1, "num_generations": 4,
        "model": str(files / "model"), "task": str(files / "questions.jsonl"), "reward": "length(target=4, soft=8, unit='characters')",
        "sampling": Sampling(max_tokens=8), "eval_problems": 4, "shards": 3, "rollout_timeout": 60.0,
    }  # fmt: skip
    return Config(**(plain | changes))


def start(files: Path, runs: Path, callbacks: tuple[Any, ...] = (), **changes: Any) -> dict[str, Any]:
    return run_config(settings(files, **changes), runs, method=grpo, callbacks=callbacks)


class Inside:
    """A worker in a thread of this process: the same `Worker`, without a process to start."""

    def __init__(self, setup: bytes, index: int) -> None:
        self.setup, self.index = setup, index
        self.worker: Worker | None = None
        self.busy, self.killed = threading.Lock(), False

    @property
    def life(self) -> Any:
        return self.worker

    def start(self) -> bytes:
        self.worker, self.killed = self.worker or Worker(self.setup, self.index), False
        return b"="

    def ask(self, message: bytes, timeout: float) -> bytes:
        assert self.worker is not None
        with self.busy:
            if self.killed:
                raise Died("it was killed")
            return self.worker.reply(message)

    def kill(self) -> None:
        """A thread cannot be killed, so its answer is waited for: one that is still in torch when the interpreter ends aborts the process."""
        with self.busy:
            self.killed = True


def inside() -> None:
    """From now on workers are threads: for runs that are killed many times."""
    choose.Process = Inside  # type: ignore[misc, assignment]
