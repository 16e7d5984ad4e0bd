"""Real runs for the page: the loop, the environments, the tools and the store are those of `posttrain run`; only what the model says is
given (its log-probabilities are its own), because a model of a few thousand weights would call nothing by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import posttrain as pt
from posttrain.core.config import to_dict
from posttrain.core.protocols import Environment, Episode, Step
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.methods.grpo import grpo
from posttrain.policies.language import LanguagePolicy
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.runs.run import Run
from posttrain.train import train
from tests.runs import tiny_run
from tests.wiring import record, spies

ATTACK = "<img src=x onerror=window.hacked=1>"


def said_by(turn: int, place: int) -> str:
    """What the model says: a call, then a call that is at fault, then an answer that is right in every second episode."""
    if turn == 0:
        return '<tool_call>{"name": "calculator", "arguments": {"expression": "6*7"}}</tool_call>'
    if turn == 1:
        return f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{ATTACK}"}}}}</tool_call>'
    return "42" if place % 2 else "41"


def speaks(policy: Any, engine: Any, rows: Any, keys: Any, how: Any, finished: Any = None) -> Any:
    """In the place of sampling: by how many tool results have been read."""
    out = []
    for row, mine in zip(rows, keys, strict=True):
        heard = policy.tokenizer.decode([*row.observation.tokens.tolist(), *row.actions.tolist()])
        turn = heard.count("\n</tool_response>")
        out.append([record._sample(policy, row, said_by(turn, key % 2), how) for key in mine])
    return out


def with_tools(folder: Path, name: str = "tools") -> Path:
    """GRPO with a calculator: two steps of two prompts with four episodes."""
    rows = folder / "rows.jsonl"
    rows.parent.mkdir(parents=True, exist_ok=True)
    rows.write_text("".join(json.dumps({"question": f"What is 6*7? ({k})", "answer": "42"}) + "\n" for k in range(8)))
    with patch.object(LanguagePolicy, "_generate", speaks), patch.object(LanguagePolicy, "turns", None):
        pt.run(
            method="grpo", model=spies.tiny_folder(2048), task=str(rows), tools="calculator", runs=folder, name=name, steps=2, prompts=2,
            num_generations=4, eval_problems=0, threads=1, lr=1e-3, sampling={"max_tokens": 120},
        )  # fmt: skip
    return folder / name


class Debate(Environment):
    """A proposer and the policy speak in turns, the policy twice at first: p q q p q, each seeing what was said before."""

    name = "debate"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return Prompt.text(f"{split}-{index}", "write a", "a")

    def first_role(self, prompt: Prompt) -> str:
        return "proposer"

    def open(self, prompt: Prompt, key: int) -> Episode:
        return Spoken()


ORDER = ("proposer", "policy", "policy", "proposer", "policy")


class Spoken(Episode):
    turns = 0

    def step(self, turn: Turn) -> Step:
        self.turns += 1
        if self.turns == len(ORDER):
            return Step(None, reward=1.0, rewards={"proposer": 0.5})
        return Step([{"role": "user", "content": f"turn {self.turns}"}], reward=0.0, role=ORDER[self.turns])


def of_roles(folder: Path, name: str = "roles") -> Path:
    """Two steps of episodes of two roles, the first of which learns; both say what they sample."""
    with Run(folder / name, to_dict(tiny_run.config(name=name, steps=2))) as run:
        settings = tiny_run.config(name=name, steps=2, log_rollouts=-1, sampling=Sampling(max_tokens=24))
        loop = tiny_run.build(run, settings, grpo.but(rollout=grpo.rollout.but(n=4), terms=()))
        loop.env = loop.source.env = Debate()  # type: ignore[attr-defined]
        loop.source.policies = {"policy": loop.policy, "proposer": tiny_run.policy(7)}  # type: ignore[attr-defined]
        for policy in loop.source.policies.values():  # type: ignore[attr-defined]
            policy.stops = tuple(range(1, 12))  # so that most turns end by themselves
        loop.source.scorer = Prescored()  # type: ignore[attr-defined]
        train(loop)
        run.finish("train")
    return folder / name
