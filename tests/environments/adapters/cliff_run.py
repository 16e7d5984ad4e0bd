"""Training on a slippery cliff, killed inside an episode: `python -m tests.environments.adapters.cliff_run FOLDER` prints what two runs end
with, one undisturbed, one killed at some move of some episode again and again; each is a process of its own, forked from this one."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import gymnasium
import torch

import posttrain as pt
from posttrain.environments.adapters import gymnasium as adapter
from posttrain.policies.language import LanguagePolicy
from tests.models import tiny

ROWS = "SELECT r.step, t.text, t.reward, t.tokens, t.logp FROM turns t JOIN rollouts r ON r.id = t.id ORDER BY 1, t.id, t.turn"


class Spoken(gymnasium.ActionWrapper):
    """Whatever a random model of letters says is a move."""

    def __init__(self) -> None:
        super().__init__(gymnasium.make("CliffWalking-v1", is_slippery=True))
        self.action_space = gymnasium.spaces.Text(100, charset=tiny.LETTERS)

    def action(self, action: str) -> int:
        return sum(map(ord, action)) % 4


gymnasium.register("Test/Spoken-v0", entry_point=Spoken)


class Ending(LanguagePolicy):
    """Ends every turn by itself, so that the length limit ends no episode."""

    def act(self, *args: Any, **more: Any) -> Any:
        made = super().act(*args, **more)
        for turn in (turn for some in made for turn in some):
            turn.stopped = True
        return made


def train(folder: Path) -> None:
    env = adapter.Gymnasium("Test/Spoken-v0", rules="go", faults=30, max_episode_steps=4)
    policy = Ending(tiny.decoder(), tiny.letters(), "tiny")
    method = pt.find_method("grpo").but(advantage="turns")
    pt.run(
        model=policy, env=env, method=method, runs=folder.parent, name=folder.name, steps=3, prompts=2, num_generations=3,
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
    codes = [child(root / "killed", move) for move in (13, 30, 47, 0)]
    print(json.dumps({"whole": whole, "codes": codes, "ends": [ending(root / "whole"), ending(root / "killed")]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
