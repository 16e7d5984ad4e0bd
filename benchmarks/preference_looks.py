"""What `benchmarks.preferences` measures of a policy as it learns: its answers to held-out prompts beside those of its start."""

from __future__ import annotations

import gc
import gzip
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from claims.machinery.arms import Tally
from posttrain.core.conditioning import Directions
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.evals.diversity import across_input, per_input
from posttrain.evals.kl import sequence_kl
from posttrain.evals.length_controlled import length_controlled
from posttrain.evals.win_rate import win_rate
from posttrain.policies.load import load_model
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.runs.saved import load_reward_model

EVAL_SEED, START_SEED = 50_000, 60_000  # of answers that are looked at; the start's own are other draws
AT_ONCE, ROWS = 128, 32  # prompts that are answered together, answers of one forward pass
CURVES = (
    "loss",
    "grad_norm",
    "rewards/chosen",
    "rewards/rejected",
    "rewards/margins",
    "rewards/accuracies",
    "length",
    "lr",
)
STRAIGHT = Directions(("helpful", "verbose"))  # as DPA is told: helpful alone


def rows_of(file: Path) -> list[dict[str, Any]]:
    with gzip.open(file, "rt") as lines:
        return [json.loads(line) for line in lines]


def pairs_of(file: Path) -> list[Prompt]:
    """Pairs as reward models read them."""
    return [asked(r["prompt"], i, {k: r[k] for k in ("chosen", "rejected")}) for i, r in enumerate(rows_of(file))]


def prompts_of(data: Path, split: str) -> list[Prompt]:
    """The held-out prompts, or those that rates are chosen on."""
    file = data / ("ask" if split == "held_out" else "policy") / "test.jsonl.gz"
    return [asked(x, i, {}) for i, x in enumerate(dict.fromkeys(r["prompt"] for r in rows_of(file)))]


def asked(text: str, i: int, info: dict[str, Any]) -> Prompt:
    return Prompt(f"held-out-{i}", ({"role": "user", "content": text},), None, info)


def released() -> None:
    """Memory of a run that has ended, back to the device: others share it."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


class Looks(Tally):
    """A callback: before the first update and after every so many, the policy answers the held-out prompts."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__()
        self.job, self.device = job, job["device"]
        self.prompts = prompts_of(Path(job["data"]), job["split"])[: job["problems"]]
        told = job["method"] == "dpa"
        self.told = [
            replace(p, content=STRAIGHT.written(p.content, STRAIGHT.example())) if told else p for p in self.prompts
        ]
        self.how = Sampling(**job["sampling"])
        self.start = load_model(job["model"], self.device or None).eval().requires_grad_(False)
        self.curves: dict[str, list[float]] = {}  # type: ignore[assignment]
        self.steps, self.lr, self.began, self.away = 0, 0.0, time.perf_counter(), 0.0
        self.policy: Any = None
        self.baseline: list[list[Rollout]] = []
        self.seen: list[tuple[dict[str, float], list[list[Rollout]]]] = []  # type: ignore[assignment]

    # ---- as it learns

    def on_rollouts(self, loop: Any, step: int, groups: list[Group]) -> None:
        self.counted["written"] += sum(len(g.rollouts) for g in groups)
        if not self.baseline:
            self.baseline = self.answers(loop.policy, self.prompts, START_SEED)
            self.look(loop.policy)
            self.began, self.away = time.perf_counter(), 0.0

    def on_step(self, loop: Any, step: int, metrics: dict[str, float]) -> None:
        self.updates[loop.phase, "updates"] = loop.learner.updates
        self.lr = max(self.lr, float(loop.learner.lr or 0.0))
        for name in CURVES:
            if name in metrics and math.isfinite(metrics[name]):
                self.curves.setdefault(name, []).append(float(f"{metrics[name]:.4g}"))
        self.steps, self.policy = self.steps + 1, loop.policy
        if self.steps % self.job["every"] == 0 or self.steps == self.job["steps"]:
            self.look(loop.policy)

    def end(self) -> None:
        """The last look, where a round that said nothing of some prompts had fewer updates."""
        if self.seen[-1][0]["update"] != self.steps:
            self.look(self.policy)
        self.policy = None

    def spent(self) -> dict[str, float]:
        """Updates, answers that were learned from, and answers that were sampled to learn from."""
        online = self.job["method"] in ("inpo", "dpa")
        sampled = 3 * self.job["asked"] * self.job["n"] if online else 0
        return {"updates": sum(self.updates.values()), "written": self.counted["written"], "sampled": sampled}

    def answers(self, policy: Policy, prompts: Sequence[Prompt], seed: int) -> list[list[Rollout]]:
        pieces = [prompts[i : i + AT_ONCE] for i in range(0, len(prompts), AT_ONCE)]
        seed += self.job["seed"]
        return [made for some in pieces for made in policy.sample(list(some), self.job["samples"], self.how, seed, -1)]

    def look(self, policy: Policy) -> None:
        """What needs no judge: KL to the start, which is not told a direction, lengths, diversity."""
        began = time.perf_counter()
        made = self.answers(policy, self.told, EVAL_SEED)
        plain = [[plainly(r, p, self.start) for r in some] for some, p in zip(made, self.prompts, strict=True)]
        flat, words = [r for some in made for r in some], [[r.text.lower().split() for r in some] for some in made]
        own_B, start_B = logps(policy, flat), logps(self.start, [r for some in plain for r in some])
        kl, error = sequence_kl(own_B.unsqueeze(-1), start_B.unsqueeze(-1), torch.ones(len(flat), 1))
        found = {
            "update": self.steps, "seconds": round(began - self.began - self.away, 2), "kl": kl, "kl_error": error,
            "tokens": mean([len(r) for r in flat]), "characters": mean([len(r.text) for r in flat]),
            "ended": mean([float(not r.truncated) for r in flat]), "per_input": per_input(words), "across_input": across_input(words),
        }  # fmt: skip
        self.seen.append(({k: x if k == "update" else float(f"{x:.5g}") for k, x in found.items()}, plain))
        self.away += time.perf_counter() - began

    # ---- when it has learned

    def judged(self, models: dict[str, Path]) -> list[dict[str, Any]]:
        """The points of the curve, with what each reward model says of the answers beside the start's."""
        points: list[dict[str, Any]] = [dict(found) for found, _ in self.seen]
        before = [r for some in self.baseline for r in some]
        for name, folder in models.items():
            model = RewardModel(load_reward_model(folder, self.device))
            theirs = read(model, before)
            for point, (_, made) in zip(points, self.seen, strict=True):
                flat = [r for some in made for r in some]
                ours = read(model, flat)
                length, before_it = ([float(len(r.text)) for r in some] for some in (flat, before))
                at_equal = length_controlled(ours, theirs, length, before_it)
                found = {
                    "win_rate": win_rate(ours, theirs),
                    "length_controlled": at_equal,
                    "score": mean(ours) - mean(theirs),
                }
                point[name] = {k: round(x, 5) for k, x in found.items()}
            del model
            released()
        return points


def plainly(r: Rollout, prompt: Prompt, policy: Any) -> Rollout:
    """The same tokens as an answer to the prompt as it was asked, without what was said of a direction."""
    return r if r.prompt.content == prompt.content else replace(r, prompt=prompt, turns=[replace(r.turns[0], observation=policy.observe(prompt))])  # fmt: skip


def read(model: RewardModel, rollouts: Sequence[Rollout]) -> list[float]:
    """What a reward model says of answers; it knows only answers that have ended, so one that was cut is read as if it ended there."""
    return model([r.prompt for r in rollouts], [r.text for r in rollouts])


@torch.no_grad()
def logps(policy: Any, rollouts: Sequence[Rollout]) -> torch.Tensor:
    """log pi(y) of each answer."""
    was, out = policy.training, []
    policy.eval()
    for i in range(0, len(rollouts), ROWS):
        some = rollouts[i : i + ROWS]
        mask_BT = torch.nn.utils.rnn.pad_sequence([r.mask_T for r in some], batch_first=True)
        out.append((policy.forward(some)["logp_BT"].float().cpu() * mask_BT).sum(-1))
    policy.train(was)
    return torch.cat(out)


def mean(xs: Sequence[float]) -> float:
    return math.fsum(xs) / len(xs) if xs else math.nan
