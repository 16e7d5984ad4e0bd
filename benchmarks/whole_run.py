"""`posttrain run grpo` as users run it, with its checkpoints, grading, storing and display, beside the seconds of its sampling and training
alone; and TRL's GRPOTrainer with the same questions, samples, saving and logging.

python -m benchmarks.whole_run --model smollm2 --task FOLDER --out benchmarks/results/whole_run.json [--trl --trl-steps 12]
python -m benchmarks.whole_run --model pocket --task word_problems --steps 30 --trl --trl-steps 10 --reward math      (two CPU cores)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import posttrain.api as api
from posttrain.core.config import Config, from_dict
from posttrain.core.loop import Loop
from posttrain.policies.language import LanguagePolicy
from posttrain.runs.run import Run
from posttrain.view.live import display
from posttrain.weights.learner import Learner


class Clock:
    """Seconds spent inside some functions, nested calls counted once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.depth = 0

    def around(self, owner: Any, name: str, told: str) -> None:
        inner = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.depth += 1
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                self.depth -= 1
                if not self.depth:
                    self.seconds[told] = self.seconds.get(told, 0.0) + time.perf_counter() - began

        setattr(owner, name, timed)


def ours(settings: dict[str, Any], runs: str) -> dict[str, float]:
    """Seconds of all steps, and of sampling and training in them; loading and evaluation are outside."""
    clock, whole = Clock(), [0.0]
    train = api.train

    def timed(loop: Any) -> None:
        clock.around(LanguagePolicy, "act", "sampling")
        clock.around(Learner, "annotate", "training")
        clock.around(Learner, "update", "training")
        clock.around(Run, "save", "checkpoints")
        clock.around(Run, "log", "storing")
        clock.around(Loop, "tell", "callbacks")
        began = time.perf_counter()
        train(loop)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        whole[0] = time.perf_counter() - began
        clock.depth = 1  # the evaluation after training does not count

    finish = Loop.finish

    def finished(loop: Any) -> None:
        began = time.perf_counter()
        finish(loop)  # the last checkpoint, as far as the evaluation did not cover its writing
        whole[0] += time.perf_counter() - began

    api.train, Loop.finish = timed, finished  # type: ignore[method-assign]
    config: Config = from_dict(Config, settings | {"name": "whole"})
    api.run_config(config, runs, callbacks=(display(quiet=True, silent=True, runs=runs),))
    store = Run.open(Path(runs) / "whole").store
    told = {
        f"{stage} as recorded": sum(x for _, x in store.series(f"{stage}/seconds"))
        for stage in ("sampling", "training")
    }
    return {"whole": whole[0], **clock.seconds, **told}


def trl(settings: dict[str, Any], steps: int, runs: str) -> list[float]:
    """Seconds of each step of TRL's trainer, saving and logging as often."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from posttrain.environments.task import task
    from posttrain.methods.grpo import grpo
    from posttrain.policies.load import find_folder, load_tokenizer

    cuda = torch.cuda.is_available()
    folder = find_folder(settings["model"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if cuda else torch.float32)
    env = task(settings["task"], think=settings.get("think", True))
    n, prompts = grpo.rollout.defaults()["n"], settings.get("prompts", Config.prompts)
    asked = [env.prompt(i) for i in range(prompts * steps)]
    rows = {"prompt": [list(p.content) for p in asked], "place": list(range(len(asked)))}
    ticks: list[float] = []

    class Tick(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if cuda:
                torch.cuda.synchronize()
            ticks.append(time.perf_counter())

    def worth(completions: list[Any], place: list[int], **_: Any) -> list[float]:
        return [float(env.grade(asked[i], c[0]["content"])) for i, c in zip(place, completions, strict=True)]

    pieces = max(1, prompts * n // (64 if cuda else 16))
    config = GRPOConfig(
        output_dir=runs, num_generations=n, per_device_train_batch_size=prompts * n // pieces, gradient_accumulation_steps=pieces,
        max_completion_length=settings["sampling"]["max_tokens"], max_steps=steps, bf16=cuda, beta=0.04, report_to=[], logging_steps=1,
        save_strategy="steps", save_steps=10, save_total_limit=2, use_cpu=not cuda, log_completions=False, shuffle_dataset=False,
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=model, processing_class=load_tokenizer(folder), args=config, train_dataset=Dataset.from_dict(rows), reward_funcs=worth,
        callbacks=[Tick()],
    )  # fmt: skip
    trainer.train()
    if cuda:
        torch.cuda.synchronize()
    ticks.append(time.perf_counter())
    return [b - a for a, b in zip(ticks, ticks[1:], strict=False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--task", default="word_problems")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--reward", default="")
    parser.add_argument("--save-every", type=int, default=Config.save_every)
    parser.add_argument("--log-rollouts", type=int, default=Config.log_rollouts)
    parser.add_argument("--trl", action="store_true")
    parser.add_argument("--trl-steps", type=int, default=12, help="of which the first two do not count")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    settings = {
        "model": args.model,
        "task": args.task,
        "steps": args.steps,
        "sampling": {"max_tokens": args.max_tokens},
    }
    settings |= {"reward": args.reward, "save_every": args.save_every, "log_rollouts": args.log_rollouts}
    with tempfile.TemporaryDirectory() as runs:
        found = ours(settings, runs)
    parts = found.get("sampling", 0.0) + found.get("training", 0.0)  # of the policy's and the learner's functions alone
    stages = found["sampling as recorded"] + found["training as recorded"]  # with what the loop does around them
    name, value = (
        f"whole run against its sampling and training, {Path(args.model).name}, {args.steps} steps",
        found["whole"] / parts,
    )
    row: dict[str, Any] = {"name": name, "value": value, "unit": "x", "peer": "its own sampling and training, seconds", "peer_value": parts,
                           "ratio": value, "bar": "at most 1.10", "met": value <= 1.10, "seconds": found, "to_recorded_stages": found["whole"] / stages, "step_s": found["whole"] / args.steps}  # fmt: skip
    print(row, flush=True)
    if args.trl:
        with tempfile.TemporaryDirectory() as runs:
            steps = trl(settings, args.trl_steps, runs)
        theirs = sum(steps[2:]) / len(steps[2:])
        bar = 8 if torch.cuda.is_available() else 2
        row["trl"] = {"steps": steps, "step_s": theirs, "ratio": theirs / row["step_s"], "bar": f">= {bar}x"}
        print(row["trl"], flush=True)
    row |= {"hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
            "versions": f"torch {torch.__version__}, Python {platform.python_version()}", "settings": settings,
            "command": f"python -m benchmarks.whole_run --model {Path(args.model).name} --steps {args.steps}" + " --trl" * args.trl,
            "date": time.strftime("%Y-%m-%d")}  # fmt: skip
    if args.out:
        old = json.loads(args.out.read_text()) if args.out.exists() else []
        args.out.write_text(json.dumps([*old, row], indent=1) + "\n")


if __name__ == "__main__":
    main()
