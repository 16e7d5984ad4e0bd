"""A whole GRPO step (32 prompts x 8 answers x 256 tokens, SmolLM2-135M shape, random weights) here and in TRL, in one call.

python -m benchmarks.grpo_step --tokenizer FOLDER [--trl] --out benchmarks/results/grpo_step.json
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.rollout import SHAPES, scaled
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.methods.grpo import grpo
from posttrain.models.decoder import Decoder
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_tokenizer
from posttrain.rewards.runtime.score import RewardSum
from posttrain.runs.in_memory import After, Listed, loop_of
from posttrain.train import train

QUESTION = "Work out the following sum and say how you found it, one step a line, with the result in the last line: "


def texts(count: int) -> list[str]:
    return [QUESTION + " + ".join(str((i * 37 + j * 11) % 100) for j in range(24)) for i in range(count)]


def worth(prompt: Any, text: str) -> float:
    return float(sum(c.isdigit() for c in text[-200:])) / 200


def steps_of(
    policy: LanguagePolicy, prompts: int, n: int, tokens: int, steps: int, profile: bool = False
) -> list[float]:
    """Seconds of each GRPO step (no KL and no reference, as is TRL's default) of this many prompts, answers and tokens."""
    env = Listed([Prompt.text(str(i), t) for i, t in enumerate(texts(prompts))])
    micro = 65536 if policy.device.type == "cuda" else 128  # as `--micro-tokens 128`: less memory, the same gradient
    config = Config(steps=steps, prompts=prompts, sampling=Sampling(tokens), lr=1e-6, warmup=0, micro_tokens=micro)
    method, ticks = grpo.but(terms=(), rollout=grpo.rollout.but(n=n)), [time.perf_counter()]
    loop = loop_of(policy, method, env, config, RewardSum([("worth", worth, 1.0)]))
    loop.callbacks = [After(lambda step: ticks.append(time.perf_counter()))]
    if profile:
        seen = cProfile.Profile()
        seen.runcall(train, loop)
        pstats.Stats(seen).sort_stats("cumulative").print_stats("posttrain|method '|built-in", 45)
    else:
        train(loop)
    return [b - a for a, b in zip(ticks, ticks[1:], strict=False)]


def ours(tokenizer: str, steps: int, profile: bool = False) -> list[float]:
    with torch.device("cuda"):
        model = scaled(Decoder(SHAPES["SmolLM2-135M"])).to(torch.bfloat16)
    return steps_of(LanguagePolicy(model, load_tokenizer(tokenizer)), 32, 8, 256, steps, profile)


def trl(tokenizer: str, steps: int) -> list[float]:
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tokenizer), dtype=torch.bfloat16).cuda()
    ticks: list[float] = []

    class Tick(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            torch.cuda.synchronize()
            ticks.append(time.perf_counter())

    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), num_generations=8, per_device_train_batch_size=64, gradient_accumulation_steps=4,
        max_completion_length=256, max_steps=steps, bf16=True, report_to=[], logging_steps=1, save_strategy="no",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, processing_class=load_tokenizer(tokenizer), args=config, train_dataset=Dataset.from_dict({"prompt": texts(256)}),
        reward_funcs=lambda completions, **_: [worth(None, c) for c in completions], callbacks=[Tick()],
    )  # fmt: skip
    trainer.train()
    torch.cuda.synchronize()
    ticks.append(time.perf_counter())
    return [b - a for a, b in zip(ticks, ticks[1:], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="a folder with SmolLM2's tokenizer and config.json")
    parser.add_argument("--trl", action="store_true", help="measure TRL too")
    parser.add_argument("--profile", action="store_true", help="where the host spends its time, and nothing else")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.profile:
        ours(args.tokenizer, 3)
        print([round(x, 3) for x in ours(args.tokenizer, 4, profile=True)])
        return
    mine = ours(args.tokenizer, 6)
    print("ours", [round(x, 3) for x in mine], flush=True)
    value, peer = statistics.median(mine[2:]), None
    if args.trl:
        theirs = trl(args.tokenizer, 3)
        print("TRL", [round(x, 3) for x in theirs], flush=True)
        peer = min(theirs)
    row = {"name": "GRPO step, SmolLM2-135M shape, 32 x 8 x 256 tokens", "value": value, "unit": "s", "peer": "TRL 1.16, default generation",
           "peer_value": peer, "ratio": peer / value if peer else None, "bar": "0.75 s and 10x TRL", "met": value <= 0.75 and (peer or 7.1) >= 10 * value,
           "steps": mine, "hardware": torch.cuda.get_device_name(), "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
           "command": "python -m benchmarks.grpo_step --tokenizer FOLDER --trl", "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    print(row)
    if args.out:
        args.out.write_text(json.dumps([row], indent=1) + "\n")


if __name__ == "__main__":
    main()
