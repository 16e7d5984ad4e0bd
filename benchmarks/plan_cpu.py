"""One and two processes of one thread on this machine with the built-in model: factors from two sizes, checked on others.

Two processes share each step: each samples and trains half of the prompts, and gradients are summed over gloo before the optimiser.
Seconds are those of each thread's own work, the slower rank's where there are two, so that other programs do not count; what
gloo takes is left out (6.6 MB per step).
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.plan_check import Row
from posttrain.planning.costs import Costs, Layout
from posttrain.planning.hardware import Cluster, Device
from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import Shape
from posttrain.planning.simulate import simulate
from posttrain.planning.speed import Pace, Speed
from posttrain.planning.work import Work

POCKET = Shape(512, 128, 512, 6, 4, 4, 32, True, 1024)
CORE = Device("one thread", 1e9, 1e9, 8e9)  # peaks of 1: the factors are what was measured
MICRO = 1 << 20  # a step is one pass


@dataclass(frozen=True)
class Size:
    prompts: int
    n: int
    tokens: int


CALIBRATED = (Size(4, 4, 16), Size(16, 8, 32), Size(8, 8, 64))
CHECKED = (Size(12, 8, 48), Size(6, 4, 64))
SPLIT = (Size(16, 8, 32), Size(12, 8, 48))


def steps_of(size: Size, steps: int, ranks: int = 1) -> tuple[list[tuple[float, float]], int]:
    """((seconds of sampling, of training) of each step, tokens of a prompt), in seconds of this thread."""
    import torch

    from posttrain.core.config import Config
    from posttrain.core.sampling import Sampling
    from posttrain.core.types import Prompt
    from posttrain.methods.grpo import grpo
    from posttrain.policies.load import load_model
    from posttrain.rewards.runtime.score import RewardSum
    from posttrain.runs.in_memory import After, Listed, loop_of
    from posttrain.train import train
    from posttrain.weights.learner import Learner

    torch.set_num_threads(1)
    policy = load_model("pocket", "cpu")
    type(policy).stop_ids = property(lambda self: [])  # every answer is as long as it may be
    prompts = [Prompt.text(str(i), f"What is {10 + i}+{3 + i}? Then take away {i}.") for i in range(size.prompts)]
    config = Config(
        steps=steps, prompts=size.prompts, sampling=Sampling(size.tokens), lr=1e-6, warmup=0, micro_tokens=MICRO
    )
    method = grpo.but(terms=(), rollout=grpo.rollout.but(n=size.n))
    loop = loop_of(policy, method, Listed(prompts), config, RewardSum([("worth", lambda p, t: float(len(t) % 7), 1.0)]))
    marks = [time.thread_time()]
    half: list[float] = []
    loop.callbacks = [After(lambda step: marks.append(time.thread_time()))]
    gather = loop.gather

    def gathered(*args: Any) -> Any:
        found = gather(*args)
        half.append(time.thread_time())
        return found

    loop.gather = gathered  # type: ignore[method-assign]
    if ranks > 1:
        step = Learner._step

        def summed(self: Any, *args: Any) -> Any:
            for p in policy.parameters():
                if p.grad is not None:
                    torch.distributed.all_reduce(p.grad)
            return step(self, *args)

        Learner._step = summed  # type: ignore[method-assign]
    train(loop)
    each = [(h - a, b - h) for a, h, b in zip(marks, half, marks[1:])]
    return each[1:], int(policy.observe(prompts[0]).tokens.numel())


def rank_of(rank: int, ranks: int, file: str, size: Size, steps: int, out: Any) -> None:
    """One of several processes: its share of the prompts."""
    import torch

    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=ranks)
    try:
        out.put(steps_of(replace(size, prompts=size.prompts // ranks), steps, ranks)[0])
    finally:
        torch.distributed.destroy_process_group()


def measured(size: Size, ranks: int, steps: int = 6) -> tuple[float, float]:
    """(seconds of sampling, of training), the shortest over steps, of the slower rank."""
    if ranks == 1:
        each = steps_of(size, steps)[0]
        return tuple(min(x) for x in zip(*each))  # type: ignore[return-value]
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        started = [
            spawn.Process(target=rank_of, args=(r, ranks, f"{folder}/meet", size, steps, out)) for r in range(ranks)
        ]
        for process in started:
            process.start()
        found = [out.get(timeout=300) for _ in started]
        for process in started:
            process.join()
    slower = [max(pair, key=sum) for pair in zip(*found)]
    return tuple(min(x) for x in zip(*slower))  # type: ignore[return-value]


def fitted(prompt: int, found: dict[Size, tuple[float, float]]) -> Speed:
    """Sampling: call + launches x steps + tokens; training: host + tokens. Least squares over the calibrated sizes."""
    import numpy as np

    sizes = list(found)
    ones = np.ones(len(sizes))
    steps = np.array([x.tokens * POCKET.layers for x in sizes])
    tokens = np.array([x.prompts * x.n * x.tokens * 2 * POCKET.multiplied / CORE.flops for x in sizes])
    sampling = np.array([found[x][0] for x in sizes])
    call, launch, decode = np.linalg.lstsq(np.stack((ones, steps, tokens), 1), sampling, rcond=None)[0]
    work = np.array(
        [(x.prompts * x.n * x.tokens + x.prompts * prompt) * 6 * POCKET.multiplied / CORE.flops for x in sizes]
    )
    host, train = np.linalg.lstsq(np.stack((ones, work), 1), np.array([found[x][1] for x in sizes]), rcond=None)[0]
    call, launch, decode, host, train = (float(x) for x in (call, launch, decode, host, train))
    return Speed(call, 0.0, 0.0, 0.0, launch, 0.0, decode, 0, train, 0.0, 0.0, host)


def predicted(size: Size, ranks: int, prompt: int, speed: Speed) -> float:
    """Seconds per step, by the simulation of as many ranks that sample and train."""
    work = Work(
        size.prompts,
        size.n,
        Lengths(size.tokens, size.tokens, 0.0),
        prompt,
        MICRO // ranks,
        reference=False,
        save_every=10**6,
    )
    if ranks > 1:  # a rank's cell is its half
        work = replace(work, micro_tokens=size.prompts * size.n * size.tokens // ranks)
    cluster = Cluster(CORE, ranks, 1, link=1e15)
    layout = Layout("colocated", ranks, ranks, shards=ranks)
    stages, _ = Costs(POCKET, work, cluster, layout, speed).stages(4)
    crew = replace(layout.crew(4, work), mtbf=float("inf"))
    free = replace(
        stages,
        publish=0.0,
        save=0.0,
        train=[x - Pace(POCKET, CORE, speed).step(POCKET.parameters / ranks) for x in stages.train],
    )
    return simulate(crew, free).step


def cpu() -> Iterator[Row]:
    prompt = steps_of(Size(2, 2, 8), 2)[1]
    found = {size: measured(size, 1) for size in CALIBRATED}
    speed = fitted(prompt, found)
    for size in (*CALIBRATED, *CHECKED):
        seconds = sum(found[size]) if size in found else sum(measured(size, 1))
        use = "calibrated" if size in found else "checked"
        yield Row(told(size, 1), use, "s", seconds, predicted(size, 1, prompt, speed))
    for size in SPLIT:
        yield Row(told(size, 2), "checked", "s", sum(measured(size, 2)), predicted(size, 2, prompt, speed))


def told(size: Size, ranks: int) -> str:
    who = "one process" if ranks == 1 else f"{ranks} processes over gloo"
    return f"GRPO step of pocket on CPU, {who} of one thread, {size.prompts} x {size.n} x {size.tokens} tokens"
