"""Many agents at once: turns with a tool between them, against the same tokens sampled in one turn.

Each of N agents has T turns of drawn lengths; after each but the last a tool replies with a fixed number of tokens, at once or after some
milliseconds. The lengths are drawn and the end of a turn is not left to the model, so that all rows sample the same number of tokens; the
episodes are played by `posttrain.rollouts.episode`, as in training.

    once     the same number of tokens of each agent in one turn, by `Engine.generate`
    turns    T turns, a tool that replies at once
    slow     T turns, a tool that takes --tool-ms

Tokens that were read are counted: what conversations begin with (once for those that begin alike), what tools said, and one token for each
later turn, since the last token of a turn is not read by the step that samples it.

What a slow tool costs depends on what there is to sample meanwhile, so there are readings, each with its own least cost:

    together   N agents with a slot of the engine each, and nothing else to do: every agent waits for its own tools, and no schedule ends
               before the one whose tokens and tools take longest
    pool       N agents are sampled at a time and others wait for their tools: M > N agents over N slots. By Little's law the slots stay
               full if M >= N (1 + tool / time of a turn)

python -m benchmarks.agents --shape SmolLM2-135M --out benchmarks/results/agents.json          (random weights, both readings)
python -m benchmarks.agents --model FOLDER --readings 256:256:0.5 --out agents.json            (agents : slots : --overlap of a run)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import posttrain as pt
from benchmarks.rollout import SHAPES, scaled
from posttrain.core import rng
from posttrain.core.protocols import Limits
from posttrain.core.turn import Observation, Turn
from posttrain.inference.engine import Engine
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig
from posttrain.policies.engine_turns import EngineTurns
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_model
from posttrain.rollouts.episode import episodes

TINY = DecoderConfig(1000, 32, 64, 2, 2, 1, 16, tied=True)  # to see that all of it runs
FEW = 16  # agents whose steps are as quick as any
SPEED, COST = 0.7, 0.15  # bars: turns against once; what the slow tool costs
# agents, slots, the share that may wait; one of each reading is what the bars are about
READINGS = (
    "256:256:0",
    "256:256:0.5",
    "512:256:0.6",
    "640:256:0.5",
    "768:256:0.5",
    "256:256:0.75",
    "256:256:0.25",
    "1024:256:0.5",
)


@dataclass(frozen=True)
class Reading:
    agents: int
    slots: int
    overlap: float

    @property
    def name(self) -> str:
        return "together" if self.agents <= self.slots else "pool"


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

    def __init__(self, args: argparse.Namespace, overlap: float, seconds: float, vocabulary: int) -> None:
        self.args, self.seconds, self.vocabulary = args, seconds, vocabulary
        self.limits = Limits(overlap=overlap)

    def ids(self, *what: Any) -> torch.Tensor:
        draw = torch.Generator().manual_seed(rng.key(*what) % 2**63)
        count = self.args.prompt if what[0] == "prompt" else self.args.reply
        return torch.randint(100, self.vocabulary, (count,), generator=draw)

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt.text(f"{split}-{index}", "work", index)

    def open(self, prompt: pt.Prompt, key: int) -> pt.Episode:
        return Tool(self, prompt, key)


class Tool(pt.Episode):
    def __init__(self, env: Work, prompt: pt.Prompt, key: int) -> None:
        self.env, self.prompt, self.key, self.turns = env, prompt, key, 0
        self.replies = [
            env.ids("reply", key, k + 1) for k in range(env.args.turns - 1)
        ]  # a tool's own work is not the host's

    def start(self) -> Observation:
        return Observation(self.env.ids("prompt", self.prompt.answer))

    async def step(self, turn: Turn) -> pt.Step:
        self.turns += 1
        if self.turns == self.env.args.turns:
            return pt.Step(None, reward=1.0)
        if self.env.seconds:
            await asyncio.sleep(self.env.seconds)
        return pt.Step(Observation(self.replies[self.turns - 1]))


def built(shape: DecoderConfig) -> LanguagePolicy:
    """A policy of random weights: on the GPU in bfloat16 where there is one. Its tokenizer has a word for every id."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    with torch.device("cuda" if gpu else "cpu"):
        model = scaled(Decoder(shape)).to(torch.bfloat16 if gpu else torch.float32).eval()
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(shape.vocab_size)}, unk_token="w0"))
    return LanguagePolicy(model, PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1"), "random")


def play(
    policy: Any, args: argparse.Namespace, r: Reading, seconds: float, step: int
) -> tuple[float, int, list[list[int]]]:
    """Seconds, tokens read, and the lengths of every agent's turns."""
    env = Work(args, r.overlap, seconds, policy.model.config.vocab_size)
    prompts = [env.prompt(i) for i in range(r.agents // args.group)]
    longest = pt.Sampling(max_tokens=int(args.tokens * 1.75) + 1)
    ask = pt.RolloutRequest({"policy": policy}, prompts, longest, 0, step, env)
    engine: Engine = policy._engine(turns=True)
    before = engine.prefill_tokens
    began = sync()
    made = [r for g in episodes(ask, args.group) for r in g.rollouts]
    return sync() - began, engine.prefill_tokens - before, [[len(t) for t in r.turns] for r in made]


def once(policy: Any, args: argparse.Namespace, lengths: list[list[int]], step: int) -> float:
    """Seconds for the same number of tokens of each agent in one turn."""
    env = Work(args, 0.0, 0.0, policy.model.config.vocab_size)
    contexts = [env.ids("prompt", i) for i in range(len(lengths) // args.group)]
    keys = [[rng.key("once", step, i, j) for j in range(args.group)] for i in range(len(contexts))]
    limits = [[sum(lengths[i * args.group + j]) for j in range(args.group)] for i in range(len(contexts))]
    how = pt.Sampling(max_tokens=max(map(max, limits)))
    engine: Engine = policy._engine(turns=True)
    began = sync()
    engine.generate(contexts, keys, how, policy.stop_ids, limits=limits)
    return sync() - began


def of_few(policy: Any, args: argparse.Namespace) -> float:
    """Seconds of a decode step where few are sampled: no agent goes faster through its tokens."""
    lengths = [[args.tokens]] * max(FEW, args.group)
    once(policy, args, lengths, -1)
    return float(min(once(policy, args, lengths, k) for k in (-2, -3)) / args.tokens)


def sync() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def least(args: argparse.Namespace, agents: int) -> int:
    """Tokens that must be read, by the sentence at the top."""
    return int(agents // args.group * (args.prompt - 1) + agents * (args.turns - 1) * args.reply)


def measure(policy: Any, args: argparse.Namespace, r: Reading) -> dict[str, Any]:
    """One reading: medians of what was repeated; the first round of it compiles and allocates."""
    policy._native = Engine(policy.acting, max_slots=r.slots)
    tool, longest = args.tool_ms / 1000, int(args.tokens * 1.75) + 1
    whole = max(4 * (args.prompt + longest), args.prompt + args.turns * (longest + args.reply))
    policy._native.prepare(
        r.agents, whole, args.turns * longest, policy.stop_ids, kept=r.agents
    )  # once: what grows is captured anew
    seconds: dict[str, list[float]] = {"once": [], "turns": [], "slow": []}
    for k in range(args.repeats + 1):
        turns, read, lengths = play(policy, args, r, 0.0, k)
        slow = (
            play(policy, args, r, tool, k)[0] if r.overlap else turns
        )  # without overlap each reply is waited for: not tried
        single = once(policy, args, lengths, k)
        for name, taken in (("once", single), ("turns", turns), ("slow", slow)):
            seconds[name] += [taken] if k else []
    few = of_few(policy, args)
    mid = {name: statistics.median(found) for name, found in seconds.items()}
    sampled = sum(map(sum, lengths))
    chain = (
        max(map(sum, lengths)) * few + (args.turns - 1) * tool
    )  # the agent that takes longest, if it had the card to itself
    turn = mid["once"] / (sampled / min(r.agents, r.slots)) * args.tokens  # of one turn while the slots are full
    return {
        "reading": r.name, "agents": r.agents, "slots": r.slots, "overlap": r.overlap, "seconds": seconds, "tokens": sampled,
        "tokens_s": {name: sampled / taken for name, taken in mid.items()}, "speed": mid["once"] / mid["turns"],
        "cost": mid["slow"] / mid["turns"] - 1, "least_cost": max(chain / mid["turns"] - 1, 0.0),
        "agents_that_fill": round(r.slots * (1 + tool / turn)), "step_of_few_s": few, "read": read, "least": least(args, r.agents),
        "read_twice": read - least(args, r.agents),
    }  # fmt: skip


def rows_of(got: dict[str, Any], about: dict[str, Any]) -> list[dict[str, Any]]:
    """A reading as rows of benchmarks/results."""
    name = f"{got['agents']} agents over {got['slots']} slots ({got['reading']}, overlap {got['overlap']})"
    rates = got["tokens_s"]
    rows: list[dict[str, Any]] = [
        {"name": f"turns against one turn, {name}", "value": got["speed"], "unit": "of one turn's speed", "peer": "the same tokens in one turn, tokens/s",
         "peer_value": rates["once"], "ratio": got["speed"], "bar": str(SPEED), "met": got["speed"] >= SPEED, **got},
        {"name": f"a slow tool, {name}", "value": got["cost"], "unit": "more seconds", "peer": "a tool that replies at once, tokens/s",
         "peer_value": rates["turns"], "ratio": rates["slow"] / rates["turns"], "bar": f"at most {COST}", "met": got["cost"] <= COST,
         "least_cost": got["least_cost"], "agents_that_fill": got["agents_that_fill"]},
        {"name": f"read more often than once, {name}", "value": got["read_twice"], "unit": "tokens", "peer": None, "peer_value": None, "ratio": None,
         "bar": "at most 0", "met": got["read_twice"] <= 0, "read": got["read"]},
    ]  # fmt: skip
    return [row | about for row in rows if got["overlap"] or not row["name"].startswith("a slow tool")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value, told in (
        ("group", 8, "agents with one prompt"), ("turns", 4, "of each agent"), ("tokens", 128, "of a turn, on average"), ("prompt", 256, "tokens"),
        ("reply", 64, "tokens of a tool's reply"), ("tool-ms", 200, "that the slow tool takes"), ("repeats", 3, "of each reading"),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=told)
    parser.add_argument("--readings", nargs="+", default=READINGS, help="agents:slots:overlap")
    parser.add_argument("--shape", default="", choices=["tiny", *SHAPES], help="random weights of this shape")
    parser.add_argument("--model", default="pocket", help="where there is no --shape")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    policy = built(TINY if args.shape == "tiny" else SHAPES[args.shape]) if args.shape else load_model(args.model)
    Drawn.mean = args.tokens
    policy.turns = lambda how, version, count: Drawn(policy, policy._engine(turns=True), how, version, count)  # type: ignore[method-assign]
    settings = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    machine = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    about = {"hardware": machine, "versions": f"torch {torch.__version__}, Python {platform.python_version()}", "date": time.strftime("%Y-%m-%d"),
             "command": f"python -m benchmarks.agents --shape {args.shape}" if args.shape else f"python -m benchmarks.agents --model {args.model}",
             "settings": settings}  # fmt: skip
    rows: list[dict[str, Any]] = []
    for text in args.readings:
        agents, slots, overlap = text.split(":")
        made = rows_of(measure(policy, args, Reading(int(agents), int(slots), float(overlap))), about)
        rows += made
        for row in made:
            print(
                f"{row['name']:86} {row['value']:>8.3g} {row['unit']:20} bar {row['bar']:12} met {row['met']}",
                flush=True,
            )
        print(
            {k: made[0][k] for k in ("seconds", "tokens_s", "least_cost", "agents_that_fill", "step_of_few_s")},
            flush=True,
        )
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
