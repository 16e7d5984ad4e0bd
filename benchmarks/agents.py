"""Many agents at once: turns with a tool between them, against the same tokens sampled in one turn.

Each of N agents has T turns of drawn lengths; after each but the last a tool replies with a fixed number of tokens, at once or after some
milliseconds. The lengths are drawn and the end of a turn is not left to the model, so that all rows sample the same number of tokens; the
episodes are played by `posttrain.rollouts.episode`, as in training.

    once     the same number of tokens of each agent in one turn, by `Engine.generate`
    turns    T turns, a tool that replies at once
    slow     T turns, a tool that takes --tool-ms

Tokens that were read are counted: what conversations begin with (once for those that begin alike), what tools said, and one token for each
later turn, since the last token of a turn is not read by the step that samples it.

python -m benchmarks.agents --model FOLDER --agents 256 --turns 4 --out benchmarks/results/agents.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import posttrain as pt
from posttrain.core import rng
from posttrain.core.protocols import Limits
from posttrain.core.turn import Observation, Turn
from posttrain.inference.engine import Engine
from posttrain.policies.engine_turns import EngineTurns
from posttrain.policies.load import load_model
from posttrain.rollouts.episode import episodes


class Drawn(EngineTurns):
    """Turns of drawn lengths; each ends by itself where it is as long as that."""

    mean = 128

    def ask(self, who: Hashable, turns: Sequence[Turn], key: int) -> None:
        most = self.how
        self.how = replace(most, max_tokens=length(key, self.mean))
        super().ask(who, turns, key)
        self.how = most

    def step(self) -> list[tuple[Hashable, Turn]]:
        done = super().step()
        for _, turn in done:
            turn.stopped = True
        return done


def length(key: int, mean: int) -> int:
    """Between a quarter and seven quarters of the mean, a function of the key."""
    return max(1, int(mean * (0.25 + 1.5 * rng.python("length", key).random())))


class Work(pt.Environment):
    """A prompt of so many tokens, a tool that replies with so many."""

    name = "work"

    def __init__(self, args: argparse.Namespace, seconds: float, vocabulary: int) -> None:
        self.args, self.seconds, self.vocabulary = args, seconds, vocabulary
        self.limits = Limits(overlap=args.overlap)

    def ids(self, *what: Any) -> torch.Tensor:
        draw = rng.python(*what)
        count = self.args.prompt if what[0] == "prompt" else self.args.reply
        return torch.tensor([draw.randrange(100, self.vocabulary) for _ in range(count)])

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt.text(f"{split}-{index}", "work", index)

    def open(self, prompt: pt.Prompt, key: int) -> pt.Episode:
        return Tool(self, prompt, key)


class Tool(pt.Episode):
    def __init__(self, env: Work, prompt: pt.Prompt, key: int) -> None:
        self.env, self.prompt, self.key, self.turns = env, prompt, key, 0

    def start(self) -> Observation:
        return Observation(self.env.ids("prompt", self.prompt.answer))

    async def step(self, turn: Turn) -> pt.Step:
        self.turns += 1
        if self.turns == self.env.args.turns:
            return pt.Step(None, reward=1.0)
        if self.env.seconds:
            await asyncio.sleep(self.env.seconds)
        return pt.Step(Observation(self.env.ids("reply", self.key, self.turns)))


def play(policy: Any, args: argparse.Namespace, seconds: float, step: int) -> tuple[float, int, int, list[list[int]]]:
    """Seconds, tokens sampled, tokens read, and the lengths of every agent's turns."""
    env = Work(args, seconds, policy.model.config.vocab_size)
    prompts = [env.prompt(i) for i in range(args.agents // args.group)]
    longest = pt.Sampling(max_tokens=int(args.tokens * 1.75) + 1)
    ask = pt.RolloutRequest({"policy": policy}, prompts, longest, 0, step, env)
    engine = policy._engine(turns=True)
    before = engine.prefill_tokens
    began = sync()
    made = [r for g in episodes(ask, args.group) for r in g.rollouts]
    taken = sync() - began
    lengths = [[len(t) for t in r.turns] for r in made]
    return taken, sum(map(sum, lengths)), engine.prefill_tokens - before, lengths


def once(policy: Any, args: argparse.Namespace, lengths: list[list[int]], step: int) -> float:
    """Seconds for the same number of tokens of each agent in one turn."""
    env = Work(args, 0.0, policy.model.config.vocab_size)
    contexts = [env.ids("prompt", i) for i in range(args.agents // args.group)]
    keys = [[rng.key("once", step, i, j) for j in range(args.group)] for i in range(len(contexts))]
    limits = [[sum(lengths[i * args.group + j]) for j in range(args.group)] for i in range(len(contexts))]
    how = pt.Sampling(max_tokens=max(map(max, limits)))
    engine: Engine = policy._engine(turns=True)
    began = sync()
    engine.generate(contexts, keys, how, policy.stop_ids, limits=limits)
    return sync() - began


def sync() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def least(args: argparse.Namespace) -> int:
    """Tokens that must be read, by the sentence at the top."""
    return args.agents // args.group * (args.prompt - 1) + args.agents * (args.turns - 1) * args.reply


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value, told in (
        ("agents", 256, "episodes at a time"), ("group", 8, "of them with one prompt"), ("turns", 4, "of each"),
        ("tokens", 128, "of a turn, on average"), ("prompt", 256, "tokens"), ("reply", 64, "tokens of a tool's reply"),
        ("tool-ms", 200, "that the slow tool takes"), ("repeats", 3, "of each row"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=told)
    parser.add_argument("--overlap", type=float, default=0.5, help="share of the agents that may wait for replies")
    parser.add_argument("--slots", type=int, default=0, help="agents that are sampled at a time; 0: all")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    policy = load_model(args.model)
    policy._native = Engine(policy.acting, max_slots=args.slots)
    Drawn.mean = args.tokens
    policy.turns = lambda how, version, count: Drawn(policy, policy._engine(turns=True), how, version, count)
    rows: dict[str, list[float]] = {"once": [], "turns": [], "slow": []}
    read = sampled = 0
    for k in range(args.repeats + 1):  # the first compiles and allocates
        taken, sampled, read, lengths = play(policy, args, 0.0, k)
        slow = play(policy, args, args.tool_ms / 1000, k)[0]
        single = once(policy, args, lengths, k)
        for name, seconds in (("once", single), ("turns", taken), ("slow", slow)):
            rows[name] += [seconds] if k else []
    mid = {name: statistics.median(found) for name, found in rows.items()}
    machine = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    told = {
        "seconds": rows, "tokens sampled": sampled, "tokens per second": {k: sampled / v for k, v in mid.items()},
        "speed of turns against once": mid["once"] / mid["turns"], "cost of the slow tool": mid["slow"] / mid["turns"] - 1,
        "tokens read": read, "least": least(args), "read twice": read - least(args), "settings": vars(args), "machine": machine,
        "versions": {"torch": torch.__version__},
    }  # fmt: skip
    print(json.dumps(told, indent=1))
    if args.out:
        Path(args.out).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
