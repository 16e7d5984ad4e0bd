"""Where the time of one update goes: seconds with and without the host, and kernels by total time.

python -m benchmarks.profile_train --shape SmolLM2-135M --prompts 32 --answers 8 --tokens 256
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.rollout import SHAPES, scaled
from posttrain.core.assemble import assemble
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.methods.grpo import grpo
from posttrain.models.decoder import Decoder
from posttrain.policies.language import LanguagePolicy
from posttrain.weights.learner import Learner


def group(p: int, answers: int, tokens: int, context: int, vocabulary: int) -> Group:
    """A prompt with answers of random tokens, every other one right."""
    prompt, text = Prompt.text(str(p), ""), torch.randint(0, vocabulary, (context,))
    made = []
    for i in range(answers):
        actions, mask_T = torch.randint(0, vocabulary, (tokens,)), torch.ones(tokens, dtype=torch.bool)
        made.append(
            Rollout.single(prompt, text, actions, torch.full((tokens,), -10.0), mask_T, reward=float(i % 2), index=i)
        )
    return Group(prompt, made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="SmolLM2-135M", choices=list(SHAPES))
    for name, default in (("prompts", 32), ("answers", 8), ("tokens", 256), ("context", 110)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    c, gpu = SHAPES[args.shape], args.device == "cuda"
    torch.manual_seed(0)
    with torch.device(args.device):
        model = scaled(Decoder(c)).to(torch.bfloat16)
    learner = Learner(LanguagePolicy(model, None), grpo.but(terms=()), lr=1e-6, micro_tokens=65536)
    groups = [group(p, args.answers, args.tokens, args.context, c.vocab_size) for p in range(args.prompts)]
    rollouts, batch = assemble(groups)
    batch = batch.but(adv_BT=torch.randn_like(batch.mask_BT) * batch.mask_BT)

    def update(step: int) -> float:
        began = time.perf_counter()
        learner.update(rollouts, batch, step)
        if gpu:
            torch.cuda.synchronize()
        return time.perf_counter() - began

    print("seconds per update (the first compiles):", *(f"{update(step):.3f}" for step in range(4)))
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as seen:
        update(4)
    total: dict[str, list[float]] = defaultdict(list)
    for event in seen.events():
        if not gpu or event.device_type == DeviceType.CUDA:  # not the host's launches
            total[event.name[:100]].append(event.device_time if gpu else event.self_cpu_time_total)
    print(f"{sum(map(len, total.values()))} kernels, {sum(map(sum, total.values())) / 1e3:.1f} ms busy")
    for name, times in sorted(total.items(), key=lambda kv: -sum(kv[1]))[:25]:
        print(f"{sum(times) / 1e3:8.2f} ms {len(times):5} x {sum(times) / len(times):8.1f} us  {name}")


if __name__ == "__main__":
    main()
