"""A training run small enough to be killed a hundred times: a decoder of 20k parameters, letters as tokens.

    python tests/runs/tiny_run.py FOLDER [KILL_AT]  one run, from wherever FOLDER stands
    python tests/runs/tiny_run.py --serve           forks a run for each line of JSON {"folder", ...}, so that torch
                                                       is imported once for all of them

`kill_at=n` makes the process kill itself with SIGKILL at the n-th dangerous moment: a flush, a rename, a removal, a
table written, a transaction, an optimiser step, a rollout. `kill_after=s` kills it from outside after s seconds. With
`term=true` the signal is SIGTERM, and `hours=h` is a time limit: the run then saves and exits with 75.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from posttrain.core.config import Config, followed, to_dict
from posttrain.core.loop import Loop
from posttrain.core.method import Method
from posttrain.core.pause import Pause, Paused
from posttrain.core.plan import Context, Do, Phase, Plan
from posttrain.core.protocols import Environment, Episode, Limits, Step
from posttrain.core.rng import torch_generator
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.losses.supervised.sft import sft
from posttrain.methods.grpo import grpo
from posttrain.models.decoder import Decoder, DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.shaping.adaptive_kl import adaptive_kl
from posttrain.rollouts.sources import LocalSource
from posttrain.rollouts.written import demonstrations
from posttrain.runs import checkpoint
from posttrain.runs import store as store_module
from posttrain.runs.replies import kept_by
from posttrain.runs.run import Run
from posttrain.runs.start import Start
from posttrain.runs.store import Store
from posttrain.train import train
from posttrain.weights.learner import Learner
from posttrain.weights.reference import ema

LETTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789"
SHAPE = DecoderConfig(64, 32, 64, 2, 2, 2, 16)


class Letters:
    """A tokenizer of one token a letter; id 0 ends an answer."""

    eos_token_id = 0
    pad_token_id = 0
    bos_token_id = None
    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [1 + LETTERS.index(c) for c in text]}

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(LETTERS[(i - 1) % len(LETTERS)] for i in ids if i)


class Count(Environment):
    """Write as many of the letter as you can: the prompt is the letter, the reward its share of the answer."""

    name = "count"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        letter = "abcd"[index % 4]
        return Prompt.text(f"{split}-{index}", f"write {letter}", letter, demonstration=letter * 6)

    def grade(self, prompt: Prompt, text: str) -> float:
        return text.count(prompt.answer) / max(len(text), 1)


def policy(seed: int = 0) -> LanguagePolicy:
    model = Decoder(SHAPE)
    generator = torch_generator(seed, "tiny")
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.3 if p.dim() > 1 else torch.ones(p.shape))
    return LanguagePolicy(model, Letters(), "tiny")


def config(**changes: Any) -> Config:
    plain: dict[str, Any] = {
        "name": "tiny", "steps": 7, "prompts": 3, "lr": 3e-3, "warmup": 3, "save_every": 2, "keep_checkpoints": 2,
        "log_rollouts": 4, "micro_tokens": 64, "sampling": Sampling(max_tokens=8),
    }  # fmt: skip
    return Config(**(plain | changes))


def method() -> Method:
    """Everything that has state between steps: moments, warm-up, a moving reference, an adaptive KL coefficient."""
    return grpo.but(
        rollout=grpo.rollout.but(n=4), terms=(kl,), shaping=(adaptive_kl,), reference=ema.but(decay=0.9),
        epochs=2, minibatches=2,
    )  # fmt: skip


def build(run: Run, settings: Config | None = None, m: Method | None = None, phase: str = "train") -> Loop:
    settings, m, p = settings or config(), m or method(), policy()
    m = m.within(followed(settings))
    learner = Learner(p, m, settings.seed, settings.lr, settings.warmup, settings.max_norm, settings.micro_tokens)
    env = Count()
    how = (settings.sampling, settings.prompts, settings.seed)
    scorer = RewardSum([("share", env.grade, 1.0)], timeout=60)
    return Loop(
        settings, m, env, {"policy": learner}, LocalSource({"policy": p}, env, m.rollout, scorer, m.prompts.live(), how),
        run, phase=phase, select=[k.live() for k in m.select], shaping=[s.live() for s in m.shaping],
    )  # fmt: skip


def start(folder: Path, pause: Pause | None = None) -> None:
    """The whole run: from the folder as it is to the end."""
    with Run(folder, to_dict(config())) as run:
        loop = build(run)
        loop.pause = pause or loop.pause
        train(loop)
        run.finish("train")


class Asking(Count):
    """Three turns; each reply takes another time, and says how often it was asked for (a file beside the run counts): another one each time."""

    def __init__(self, counts: Path) -> None:
        self.counts = counts
        self.limits = Limits(overlap=0.4)

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Asked(self, f"{prompt.id}-{key}", prompt.answer)


class Asked(Episode):
    def __init__(self, env: Asking, name: str, letter: str) -> None:
        self.env, self.name, self.letter, self.turns = env, name, letter, 0

    async def step(self, turn: Turn) -> Step:
        self.turns += 1
        await asyncio.sleep(0.001 * (sum(turn.actions.tolist()) % 3))
        told = self.env.counts / f"{self.name}-{self.turns}"
        times = told.stat().st_size + 1 if told.exists() else 1
        reply = Step(
            [{"role": "user", "content": str(times)}] if self.turns < 3 else None,
            reward=turn.text.count(self.letter) / times,
        )
        with open(told, "ab", buffering=0) as file:
            file.write(b"x")
        return reply

    def replay(self, turn: Turn, step: Step) -> None:
        self.turns += 1


def start_turns(folder: Path) -> None:
    """A run of episodes whose replies cannot be had twice."""
    counts = folder.parent / "counts"
    counts.mkdir(parents=True, exist_ok=True)
    settings = config(steps=5, sampling=Sampling(max_tokens=8))
    with Run(folder, to_dict(settings)) as run:
        loop = build(run, settings)
        loop.policy.stops = tuple(range(1, 12))  # type: ignore[attr-defined]  # so that most turns end by themselves
        loop.env = loop.source.env = Asking(counts)  # type: ignore[attr-defined]
        loop.source.scorer = Prescored()  # type: ignore[attr-defined]
        loop.callbacks += kept_by(loop.source, loop.env, run, "train")
        train(loop)
        run.finish("train")
    (folder.parent / "asked").write_text(" ".join(str(f.stat().st_size) for f in counts.iterdir()))


def start_plan(folder: Path, pause: Pause | None = None) -> None:
    """Two phases and a piece of work between them: supervised, then pairs written down, then reinforcement."""
    from posttrain.runs import plans as recipe

    recipe.load_policy = lambda settings: policy(settings.seed)
    plan = Plan(
        (
            Phase("sft", supervised(), 3, lambda context: Count()),
            Do("note", _note),
            Phase(
                "rl", method(), 5, lambda context: Count()
            ),  # the last two saved are the last two wherever it was stopped
        ),
        "tiny",
    )
    recipe.run_plan(plan, config(name=folder.name), folder.parent, start=Start(pause=pause or Pause()))


def supervised() -> Method:
    return grpo.but(rollout=demonstrations, loss=sft, aggregate=token_mean)


def _note(context: Context) -> None:
    """What the trained policy says now: it depends on the weights that the phase before it left."""
    rows = [{"text": r.text} for r in context.role("policy").sample([Count().prompt(0)], 4, config().sampling)[0]]
    context.run.write_artifact("said", rows)
    context.notes["letters"] = sum(len(row["text"]) for row in rows)


# ---- kills


def dangerous(kill_at: int, number: int = signal.SIGKILL) -> None:
    """SIGKILL (or another signal) at the kill_at-th call of anything that changes the run or its folder."""
    seen = 0

    def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal seen
            seen += 1
            if seen == kill_at:
                os.kill(os.getpid(), number)
            return fn(*args, **kwargs)

        return call

    targets: list[tuple[Any, str]] = [
        (os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree"), (checkpoint, "write_table"), (Store, "log"),
        (Store, "forget"), (Store, "sync"), (Store, "finish"), (torch.optim.AdamW, "step"), (LanguagePolicy, "sample"),
    ]  # fmt: skip
    for owner, name in targets:
        setattr(owner, name, wrapped(getattr(owner, name)))


def killed_in_write(kill_at: int) -> None:
    """SIGKILL inside the transaction of the kill_at-th step, in the thread that writes: its rows are there, not yet committed."""
    insert, seen = store_module.insert, 0

    def call(*args: Any) -> Any:
        nonlocal seen
        done = insert(*args)
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    store_module.insert = call


def serve() -> None:
    """Fork a run for each request; the answer is how it ended."""
    import torch._dynamo  # noqa: F401 - the optimiser imports it at its first step: once here, not in every child

    for line in sys.stdin:
        request = json.loads(line)
        if request.get("kind"):
            import tests.policies.kinds  # noqa: F401 - once, not in every child
        child = os.fork()
        if child == 0:
            _child(request)
        if request.get("kill_after"):
            time.sleep(request["kill_after"])
            os.kill(child, signal.SIGKILL)  # the id stays taken until we have waited for it
        _, status = os.waitpid(child, 0)
        print(json.dumps({"code": os.waitstatus_to_exitcode(status)}), flush=True)


def _child(request: dict[str, Any]) -> None:
    """Never returns: the loop of requests belongs to the parent."""
    try:
        if request.get("kill_at"):
            dangerous(request["kill_at"], signal.SIGTERM if request.get("term") else signal.SIGKILL)
        if request.get("in_write"):
            killed_in_write(request["in_write"])
        if request.get("kind"):
            from tests.policies.kinds import start as start_kind

            start_kind(request["kind"], Path(request["folder"]))
        elif request.get("turns"):
            start_turns(Path(request["folder"]))
        else:
            with Pause(request.get("hours")).listening() as pause:
                (start_plan if request.get("plan") else start)(Path(request["folder"]), pause)
        os._exit(0)
    except Paused:
        os._exit(75)
    except BaseException:  # a child must not fall back into the parent's loop
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "--serve":
        serve()
    else:
        dangerous(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
        start(Path(sys.argv[1]))
