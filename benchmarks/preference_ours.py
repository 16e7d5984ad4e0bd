"""The side of benchmarks/preference_speed.py that is measured here: `posttrain run dpo` and `sft` on a file of rows, in this process."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.preference_speed import LENGTH, PROMPT, Work, answering, rows_of, timed
from benchmarks.rollout import SHAPES, scaled
from posttrain import api
from posttrain.core.config import Config, from_dict
from posttrain.core.turn import Observation, Turn
from posttrain.models import captured
from posttrain.models.decoder import Decoder
from posttrain.models.layout import Rows
from posttrain.models.shape import DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_tokenizer
from posttrain.runs.run import Run
from posttrain.weights.masters import Masters

TINY = DecoderConfig(512, 64, 128, 2, 4, 2, 16, tied=True)
TOKENIZER = Path(__file__).parent.parent / "posttrain" / "models" / "pocket"


class Ticks:
    """When each step was recorded."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.loss: list[float] = []

    def on_begin(self, loop: Any, *_: Any) -> None:
        self.on_step()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_rollouts(self, loop: Any, step: int, groups: list[Any]) -> None:
        sizes = {
            (len(r.row.observation.tokens), len(r.row.observation.tokens) + len(r)) for g in groups for r in g.rollouts
        }
        if sizes != {(PROMPT, LENGTH)}:
            raise AssertionError(f"rows of {sizes} tokens (prompt, whole), expected {(PROMPT, LENGTH)}")

    def on_step(self, loop: Any = None, step: int = 0, metrics: Any = None) -> None:
        if metrics:
            self.loss.append(metrics["loss"])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.at.append(time.perf_counter())


def measure(work: Work) -> dict[str, Any]:
    """Seconds of each step of a whole run; the first has the reference's pass over the data in it."""
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    with torch.device("cuda" if cuda else "cpu"):
        model = scaled(Decoder(TINY if work.tiny else SHAPES["SmolLM2-135M"])).to(
            torch.bfloat16 if cuda else torch.float32
        )
    policy, ticks = LanguagePolicy(model, load_tokenizer(str(TOKENIZER))), Ticks()
    folder = Path(tempfile.mkdtemp())
    os.environ["POSTTRAIN_CACHE"] = str(folder / "cache")  # what the reference says is computed anew in each round
    if work.plain:
        captured.MOST_FLOPS = 0
    try:
        settings = {"method": work.kind, "task": str(rows_of(work, folder)), "steps": work.steps, "prompts": work.rows, "lr": 1e-6,
                    "save_every": 1000, "eval_problems": 8, "name": "speed", "model": "random"}  # fmt: skip
        api.run_config(from_dict(Config, settings), folder / "runs", policy=policy, callbacks=(ticks,))
        with Run.open(folder / "runs" / "speed") as run:
            stages = {
                name: [x for _, x in run.store.series(f"{name}/seconds")]
                for name in ("sampling", "training", "storing")
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    kept = [] if policy.passes is None else [list(k[:3]) for k in policy.passes.kept]
    found = {"seconds": timed(ticks.at), "peak_gib": peak, "stages": stages, "captured": len(kept), "loss": ticks.loss,
             "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if cuda else 0.0, "versions": f"torch {torch.__version__}",
             "hardware": torch.cuda.get_device_name() if cuda else "CPU"}  # fmt: skip
    if cuda and not work.plain:
        found |= same_bits(policy)
    del policy, model
    if cuda:
        gc.collect()
        torch.cuda.empty_cache()
    return found


def same_bits(policy: LanguagePolicy) -> dict[str, Any]:
    """Whether a replayed pass has the log-probabilities and gradients of a launched one, to the bit; and the milliseconds of each."""
    masters, passes = Masters(policy.model.named_parameters()), captured.Passes(cast("Decoder", policy.model))
    draw = torch.Generator().manual_seed(0)
    seen = [Observation(torch.randint(0, 512, (128,), generator=draw)) for _ in range(16)]
    rows = [
        Turn.of(one, torch.randint(0, 512, (n,), generator=draw), torch.zeros(n)) for one in seen for n in (128, 100)
    ]
    laid, got, ms = Rows.of(rows), [], []
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        logp_M = passes.likelihood(laid, 1.0)
        assert logp_M is not None
        logp_M.square().sum().backward()
        torch.cuda.synchronize()
        ms.append(1000 * (time.perf_counter() - began))
        got.append([logp_M.detach().clone(), *(p.grad.clone() for _, p in masters.named if p.grad is not None)])
        for _, p in masters.named:
            p.grad = None
    equal = [all(torch.equal(a, b) for a, b in zip(one, got[0], strict=True)) for one in got[1:]]
    off = max(float((a - b).abs().max()) for a, b in zip(got[-1], got[0], strict=True))
    return {"replayed_bits_equal": equal, "replayed_largest_difference": off, "pass_ms": ms}


if __name__ == "__main__":
    answering(measure)
