"""The side of benchmarks/preference_speed.py that is measured here: `posttrain run dpo` and `sft` on a file of rows, in this process."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.preference_speed import Work, answering, rows_of, timed
from benchmarks.rollout import SHAPES, scaled
from posttrain import api
from posttrain.core.config import Config, from_dict
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.policies.load import load_tokenizer

TINY = DecoderConfig(512, 64, 128, 2, 4, 2, 16, tied=True)
TOKENIZER = Path(__file__).parent.parent / "posttrain" / "models" / "pocket"


class Ticks:
    """When each step was recorded."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def on_begin(self, loop: Any, *_: Any) -> None:
        self.on_step()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def on_step(self, *_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.at.append(time.perf_counter())


def measure(work: Work) -> dict[str, Any]:
    """Seconds of each step of a whole run; the first has the reference's pass over the data in it."""
    cuda = torch.cuda.is_available()
    torch.manual_seed(0)
    with torch.device("cuda" if cuda else "cpu"):
        model = scaled(Decoder(TINY if work.tiny else SHAPES["SmolLM2-135M"])).to(torch.bfloat16 if cuda else torch.float32)
    policy, ticks = LanguagePolicy(model, load_tokenizer(TOKENIZER)), Ticks()
    folder = Path(tempfile.mkdtemp())
    try:
        settings = {"method": work.kind, "task": str(rows_of(work, folder)), "steps": work.steps, "prompts": work.rows, "lr": 1e-6,
                    "eval_problems": 8, "name": "speed", "model": "random"}  # fmt: skip
        api.run_config(from_dict(Config, settings), folder / "runs", policy=policy, callbacks=(ticks,))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
    return {"seconds": timed(ticks.at), "peak_gib": peak, "versions": f"torch {torch.__version__}",
            "hardware": torch.cuda.get_device_name() if cuda else "CPU"}  # fmt: skip


if __name__ == "__main__":
    answering(measure)
