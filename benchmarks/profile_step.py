"""Where a decode step's time goes: kernels of one captured step, by total time.

python -m benchmarks.profile_step --shape SmolLM2-135M --answers 256
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
from collections import defaultdict

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.rollout import PROMPT, SHAPES, scaled
from posttrain.core import rng
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import STRIDE, Engine
from posttrain.inference.jobs import Job
from posttrain.models.decoder import Decoder


def whole_call(engine: Engine, answers: int) -> None:
    """Where the host spends a call with 8 answers per prompt (waiting for the device shows as .cpu)."""
    contexts = [torch.randint(0, 1000, (PROMPT,)) for _ in range(answers // 8)]
    keys = [[rng.key(p, i) for i in range(8)] for p in range(len(contexts))]
    engine.generate(contexts, keys, Sampling(256), [])
    seen = cProfile.Profile()
    seen.runcall(engine.generate, contexts, keys, Sampling(256), [])
    pstats.Stats(seen).sort_stats("cumulative").print_stats("posttrain|method 'cpu'|method 'tolist'", 24)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="SmolLM2-135M", choices=list(SHAPES))
    parser.add_argument("--answers", type=int, default=256)
    args = parser.parse_args()
    with torch.device("cuda"):
        model = scaled(Decoder(SHAPES[args.shape])).to(torch.bfloat16).eval()
    engine = Engine(model)
    whole_call(engine, args.answers)
    contexts = [torch.randint(0, 1000, (PROMPT,)) for _ in range(args.answers // 8)]
    engine.prepare(args.answers, PROMPT + 256, 256, [])
    engine.waiting.extend(
        Job(c, rng.key(p, i), Sampling(256), group=p) for p, c in enumerate(contexts) for i in range(8)
    )
    for _ in range(17):  # half of each answer
        engine.step()
    slots = engine.slots
    assert slots is not None
    engine._collect(engine.pending)  # type: ignore[arg-type]
    engine.pending, steps = None, 2 * STRIDE
    engine._extend_pages(2 * steps)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    slots.decode(engine.batch_size, "plain", steps, engine.table)
    end.record()
    torch.cuda.synchronize()
    print(f"{start.elapsed_time(end) / steps:.3f} ms per step")
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        slots.decode(engine.batch_size, "plain", steps, engine.table)
        torch.cuda.synchronize()
    total: dict[str, list[float]] = defaultdict(list)
    for event in seen.events():
        if event.device_type == DeviceType.CUDA:  # not the host's launches
            total[event.name[:90]].append(event.device_time)
    print(
        f"{sum(len(v) for v in total.values()) / steps:.0f} kernels, {sum(map(sum, total.values())) / steps / 1000:.3f} ms busy per step"
    )
    for name, times in sorted(total.items(), key=lambda kv: -sum(kv[1]))[:11]:
        print(f"{sum(times) / steps:8.1f} us  {len(times) / steps:5.1f} x {sum(times) / len(times):6.2f} us  {name}")


if __name__ == "__main__":
    main()
