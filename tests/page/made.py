"""Run folders for the tests of the page: written by the real store, with texts that try to be more than text."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch

from posttrain.core.config import Config, to_dict
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.runs.store import Store

ATTACKS = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror='window.hacked=1'>",
    "\u202eright to left\u202c",
    "\x1b[31mred\x1b[0m \x07 \x00",
    "</script><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "\u200bzero width\ufeff \u2028 line",
)


def answer(prompt: Prompt, text: str, reward: float, index: int = 0, length: int = 6) -> Rollout:
    ids = torch.arange(2, 2 + length)
    logp = -torch.linspace(0.01, 4.0, length)
    r = Rollout.single(
        prompt, torch.tensor([1, 2]), ids, logp, torch.ones(length).bool(), text, reward,
        rewards={"numeric": reward, "length": 0.5}, version=index, stopped=length < 12,
    )  # fmt: skip
    r.index = index
    r.set_stream("adv", torch.full((length,), reward - 0.5))
    r.set_stream("entropy", torch.linspace(0.1, 2.0, length))
    r.set_stream("ratio", torch.linspace(0.9, 1.1, length))
    r.set_stream("kl", torch.linspace(0.0, 0.5, length))
    r.set_stream("value", torch.linspace(-2.0, 0.75, length))
    return r


def groups(step: int, count: int = 3, size: int = 4) -> list[Group]:
    """Prompt p0 comes at every step; rewards differ within a group, lengths grow with the step."""
    out = []
    for g in range(count):
        number = 0 if g == 0 else step * count + g
        text = ATTACKS[(step + g) % len(ATTACKS)]
        prompt = Prompt.text(f"p{number}", f"question {number} {text}", "42")
        made = [
            answer(prompt, f"answer {step}.{g}.{s} {text}", (s + g) / 8, s, 6 + (step + s) % 8) for s in range(size)
        ]
        out.append(Group(prompt, made))
    if step % 5 == 4:
        out[-1].rollouts[-1].reward = math.nan
        out[-1].rollouts[-1].rewards["numeric"] = math.nan
    return out


def write(
    folder: Path, name: str = "made", steps: int = 12, phases: tuple[str, ...] = ("train",), **settings: object
) -> Path:
    """A finished run in folder/name."""
    where = folder / name
    where.mkdir(parents=True)
    config = (
        to_dict(Config(name="made", steps=steps, eval_problems=40))
        | {"method": "grpo", "task": "sums", "model": "pocket"}
        | settings
    )
    (where / "config.json").write_text(json.dumps(config))
    with Store(where / "run.sqlite") as store:
        store.token_bytes = lambda ids: [b"\xe2\x82" if i == 5 else f"<b>{i}".encode() for i in ids]
        for phase in phases:
            store.begin(phase, "policy", True, {"numeric": 1.0, "length": 0.3})
            for step in range(steps):
                metrics = {
                    "reward": step / steps, "length": 8.0 + step, "entropy": 1.0 / (step + 1), "tokens": 100.0, "reward/numeric": step / steps,
                    "reward/length": 0.5, "training/seconds": 0.3, "sampling/seconds": 0.6, "tokens_per_second": 50.0, "grad_norm": 1.0,
                    "loss": math.nan if step == 3 else 0.1, "spike": 100.0 if step == 7 else 0.0,
                }  # fmt: skip
                if step % 3 == 2:
                    metrics["accuracy"] = 0.5 + step / (2 * steps)
                store.log(phase, step, metrics, groups(step), 1.0)
            store.event(phase, steps // 2, "checkpoint", f"saved {ATTACKS[0]}")
            store.finish(phase)
    after = [1.0] * 36 + [0.0] * 4
    (where / "held_out.json").write_text(
        json.dumps({"name": "accuracy", "before": [1.0] * 20 + [0.0] * 20, "after": after})
    )
    (where / "summary.json").write_text(json.dumps({"accuracy_before": 0.5, "accuracy_after": 0.9, "seconds": 12.0}))
    return where
