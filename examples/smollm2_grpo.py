"""GRPO on SmolLM2-135M-Instruct's real weights, two tasks, several seeds, whole and with LoRA: curves and samples as JSON.

python examples/smollm2_tasks.py --out tasks
python examples/smollm2_grpo.py --model smollm2 --tasks tasks/chain-sums tasks/word-problems --out learning.json
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from posttrain.core.protocols import Environment, Policy, Scorer

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.sampling import Sampling
from posttrain.environments.task import task
from posttrain.evals.accuracy import accuracy
from posttrain.methods.grpo import grpo
from posttrain.models.lora import add_lora
from posttrain.policies.load import load_model
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.runs.guard import Guard
from posttrain.runs.in_memory import After, loop_of
from posttrain.train import train

PROMPTS, N, PROBLEMS = 32, 8, 400
FIGURES = ("reward", "length", "logp_gap", "grad_norm", "nll")


def measured(policy: Policy, env: Environment, tokens: int) -> dict[str, float]:
    """Held-out accuracy: sampled as in training, and greedy."""
    drawn, sure = (accuracy(policy, env, PROBLEMS, Sampling(tokens, temperature=t)) for t in (1.0, 0.0))
    return {"sampled": drawn.accuracy, "greedy": sure.accuracy, "tokens": drawn.tokens}


def learn(
    policy: Policy, method: Method, env: Environment, config: Config, scorer: Scorer | None = None, every: int = 20
) -> dict[str, Any]:  # fmt: skip
    """Train in place with the real loop; accuracy every so many steps, and figures of each step."""
    tokens = config.sampling.max_tokens
    points = [{"step": 0, "seconds": 0.0} | measured(policy, env, tokens)]
    spent, began = 0.0, time.perf_counter()

    def after(step: int) -> None:
        nonlocal spent, began
        if (step + 1) % every == 0 or step + 1 == config.steps:
            spent += time.perf_counter() - began  # measuring is not learning
            points.append({"step": step + 1, "seconds": round(spent, 2)} | measured(policy, env, tokens))
            began = time.perf_counter()

    lr = config.lr or 1e-5
    decay = config.steps if config.schedule == "linear" else 0
    loop = loop_of(policy, method, env, replace(config, lr=lr), scorer or build_scorer("", env), decay)
    loop.callbacks, loop.monitors = [After(after)], [Guard()]
    train(loop)
    figures = {k: [round(row[k], 5) for row in loop.run.rows if k in row] for k in FIGURES}
    return {
        "points": points,
        "figures": figures,
        "samples_drawn": config.steps * config.prompts * (config.num_generations or N),
    }


def shown(policy: Policy, env: Environment, tokens: int) -> list[dict[str, Any]]:
    """Three greedy answers to held-out questions."""
    made = accuracy(policy, env, 3, Sampling(tokens, temperature=0.0)).rollouts
    return [{"question": r.prompt.last, "gold": r.prompt.answer, "answer": r.text, "right": r.reward} for r in made]


def outcome(task: str, seed: int, lora: int, points: list[dict[str, float]]) -> dict[str, Any]:
    """The row's name, and what it has gained against its bar."""
    first, last = points[0], points[-1]
    gain = 100 * (last["greedy"] - first["greedy"])
    return {
        "name": f"GRPO, SmolLM2-135M-Instruct, {task}, {f'LoRA rank {lora}' if lora else 'all weights'}, seed {seed}",
        "value": round(gain, 2),
        "unit": "points of held-out accuracy gained, greedy",
        "peer": "before training, %",
        "peer_value": 100 * first["greedy"],
        "ratio": round(last["greedy"] / first["greedy"], 3) if first["greedy"] else None,
        "bar": "30 points within 300 s of learning",
        "met": gain >= 30 and last["seconds"] <= 300,
    }


def about() -> dict[str, Any]:
    return {
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tasks", nargs="+", required=True, help="folders with train.jsonl and test.jsonl")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, nargs="+", default=[2e-5])
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--lora", type=int, default=0, help="rank; 0 trains the weights")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    policy = load_model(args.model)
    policy = add_lora(policy, args.lora) if args.lora else policy
    start = {k: v.clone() for k, v in policy.state_dict().items()}
    rows: list[dict[str, Any]] = []
    for name, lr, seed in ((t, lr, s) for t in args.tasks for lr in args.lr for s in args.seeds):
        policy.load_state_dict(start)
        env = task(f"{name}(reward='numeric')")
        config = Config(
            seed=seed, steps=args.steps, prompts=PROMPTS, num_generations=N, lr=lr, sampling=Sampling(args.max_tokens), micro_tokens=65536,
        )  # fmt: skip
        before = shown(policy, env, args.max_tokens)
        began = time.perf_counter()
        got = learn(policy, grpo.but(terms=()), env, config)
        said = {"before": before, "after": shown(policy, env, args.max_tokens)}
        rows.append(
            {**outcome(Path(name).name, seed, args.lora, got["points"]), "task": Path(name).name, "seed": seed, "lora": args.lora,
             "lr": lr, "steps": args.steps,
             "wall_seconds": round(time.perf_counter() - began, 1), **got, "said": said, **about()}
        )  # fmt: skip
        first, last = got["points"][0], got["points"][-1]
        print(f"{Path(name).name} seed {seed} lora {args.lora} lr {lr}: sampled {first['sampled']:.1%} -> {last['sampled']:.1%}, greedy "
              f"{first['greedy']:.1%} -> {last['greedy']:.1%}, {last['seconds']:.0f} s learning", flush=True)  # fmt: skip
        args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
