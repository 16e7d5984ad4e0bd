"""Training on a slippery lake, killed inside an episode: `python -m tests.environments.adapters.lake_run FOLDER` prints what three runs,
each a process of its own forked from this one, end with: undisturbed, killed at some move of some episode again and again, resumed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

import posttrain as pt
from posttrain.environments.adapters import gymnasium as adapter
from tests.models import tiny

ROWS = "SELECT r.step, t.text, t.reward, t.tokens, t.logp FROM turns t JOIN rollouts r ON r.id = t.id ORDER BY 1, t.id, t.turn"


def train(folder: Path) -> None:
    env = adapter.Gymnasium("FrozenLake-v1", actions="a b c d", rules="go", faults=30, max_episode_steps=5)
    policy = tiny.policy()
    method = pt.find_method("grpo").but(advantage="turns")
    pt.run(
        policy=policy, env=env, method=method, runs=folder.parent, name=folder.name, steps=3, prompts=2, num_generations=3,
        save_every=1, eval_problems=1, lr=1e-2, threads=1, sampling={"max_tokens": 4},
    )  # fmt: skip


def killed_at(move: int) -> None:
    """SIGKILL in the middle of an episode, at so many moves from the start of the process."""
    act, seen = adapter.Play.act, 0

    def call(self: Any, action: Any) -> Any:
        nonlocal seen
        seen += 1
        if seen == move:
            os.kill(os.getpid(), signal.SIGKILL)
        return act(self, action)

    adapter.Play.act = call  # type: ignore[method-assign]


def child(folder: Path, move: int) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            if move:
                killed_at(move)
            train(folder)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def ending(folder: Path) -> dict[str, Any]:
    """What a run leaves: its last weights and optimiser as bytes, every turn that was stored."""
    import sqlite3

    last = max((folder / "checkpoints").glob("train-*"), key=lambda p: int(p.name.rpartition("-")[2]))
    files = {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(last.glob("*.safetensors"))}
    turns = sqlite3.connect(folder / "run.sqlite").execute(ROWS).fetchall()
    digest = hashlib.sha256(repr(turns).encode()).hexdigest()
    return {"last": last.name, "files": files, "turns": len(turns), "digest": digest}


def main(root: Path) -> None:
    torch.set_num_threads(1)
    whole = child(root / "whole", 0)
    codes = [child(root / "killed", move) for move in (25, 40, 60, 0)]
    print(json.dumps({"whole": whole, "codes": codes, "ends": [ending(root / "whole"), ending(root / "killed")]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
