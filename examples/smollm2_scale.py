"""Six published systems against GRPO at equal samples on SmolLM2-135M-Instruct: claims/scale/<id>.json with their curves.

python examples/smollm2_tasks.py --out tasks
python examples/smollm2_scale.py --model smollm2 --task tasks/word-problems --out rows.json [--arms lite-ppo grpo]
python examples/smollm2_scale.py --write rows.json more-rows.json        once all arms have run, on one machine or several
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from posttrain.core.protocols import Environment, Policy

sys.path.insert(0, str(Path(__file__).parent.parent))

from examples.smollm2_grpo import PROMPTS, N, about, learn
from posttrain.advantages.rloo import rloo
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.language.listed import Listed
from posttrain.environments.task import task
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.policies.load import load_model
from posttrain.rewards.scorers.process_model import ProcessModel
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.rollouts.step_labels import label_steps
from posttrain.runs.in_memory import fit
from posttrain.select.zero_variance import zero_variance
from posttrain.systems.efficient_reasoning.grpo_lambda import grpo_lambda
from posttrain.systems.policy_gradient.dapo import dapo
from posttrain.systems.policy_gradient.lite_ppo import lite_ppo
from posttrain.systems.policy_gradient.prorl import prorl
from posttrain.systems.policy_gradient.pure import min_form_rl
from posttrain.systems.policy_gradient.topr import topr
from posttrain.systems.policy_gradient.treepo import treepo
from posttrain.systems.reward_model.process_reward_model import process_reward_model

plain, WARM_UP = grpo.but(terms=()), 15
min_form = min_form_rl(outcome="outcome").but(terms=())
outcome = plain.but(advantage=rloo, aggregate=token_mean)  # the same without rewards on steps
PRM_PROMPTS, PRM_STEPS, PRM_RATE = 256, 64, 1e-4  # with 24 steps at 1e-5 it had learned nothing: its head starts at 0
SCALE = Path(__file__).parent.parent / "posttrain" / "claims" / "scale"
# as the systems were when their arms ran: unfinished answers left out and not paid for, nothing refilled
OLD: dict[str, Any] = {"select": ("overlong", "zero_variance"), "shaping": (), "minibatches": 4, "rounds": 1}
TREE = treepo.but(
    rollout="tree(n=8, fork=(16, 2), root=(2, 2), repeats=0)", advantage='treepo(whiten="answers")', **OLD
)
# each system beside GRPO with as many updates and as much reuse of answers, and beside itself without its idea
BESIDE = {
    "lite-ppo": ("grpo, 4 minibatches", "grpo"), "topr": ("grpo, 4 epochs", "grpo"), "grpo-lambda": ("grpo",),
    "prorl": ("grpo", "grpo, 4 minibatches"),
    "treepo": ("grpo, 4 minibatches", "treepo, unfinished answers count", "dapo, unfinished answers count"),
    "pure": ("grpo", "rloo, tokens alike", "pure after 15 steps of grpo", "rloo, tokens alike, after 15 steps of grpo"),
}  # fmt: skip
# what is tried; arms with the same number of samples, prompts per step changed where the group is larger
ARMS: dict[str, Method] = {
    "grpo": plain,
    "lite-ppo": lite_ppo, "grpo, 4 minibatches": plain.but(minibatches=4),
    "topr": topr, "grpo, 4 epochs": plain.but(epochs=4, minibatches=2),
    "grpo-lambda": grpo_lambda.but(terms=()),
    "prorl": prorl.but(reference="reset(every=20)", **OLD),
    "treepo": TREE, "treepo, unfinished answers count": TREE.but(select=(zero_variance,)),
    "dapo, unfinished answers count": dapo.but(rollout=plain.rollout, **OLD).but(select=(zero_variance,)),
    "pure": min_form, "pure after 15 steps of grpo": min_form,
    "rloo, tokens alike": outcome, "rloo, tokens alike, after 15 steps of grpo": outcome,
}  # fmt: skip


def step_model(policy: Policy, env: Environment, config: Config, out: dict[str, Any]) -> Callable[[], Any]:
    """A process reward model from the policy's own steps, finished four times each; returns the scorer."""
    scorer, began = build_scorer("", env), time.perf_counter()
    found = label_steps(
        policy, [env.prompt(i) for i in range(PRM_PROMPTS)], scorer, config.sampling, seed=config.seed + 1000
    )
    model = policy.as_reward_model()
    steps = dataclasses.replace(config, steps=PRM_STEPS, lr=PRM_RATE, num_generations=None)
    rows = fit(model, process_reward_model, Listed("steps", tuple(found)), steps)
    out["process_reward_model"] = {
        "prompts": PRM_PROMPTS, "answers_labelled": 4 * PRM_PROMPTS, "steps_labelled": sum(len(p.info["steps"]) for p in found),
        "mean_worth": mean(s["worth"] for p in found for s in p.info["steps"]), "loss": [round(r["loss"], 4) for r in rows],
        "seconds": round(time.perf_counter() - began, 1), "agreement": agreement(model, policy, env, config),
    }  # fmt: skip
    return lambda: ProcessModel(scorer, model)


def agreement(model: Any, policy: Policy, env: Environment, config: Config) -> float:
    """How often the model scores a right answer above a wrong one to the same fresh question (0.5 is chance)."""
    from posttrain.rewards.scorers.reward_model import RewardModel

    asked: list[Prompt] = [env.prompt(i) for i in range(PRM_PROMPTS, PRM_PROMPTS + 128)]
    wins = []
    for group in policy.sample(asked, N, config.sampling, config.seed + 2000, 0):
        good = [bool(env.grade(r.prompt, r.text)) for r in group]
        score = RewardModel(model).raw(group).tolist()
        wins += [
            float(a > b) for a, x in zip(score, good, strict=True) for b, y in zip(score, good, strict=True) if x > y
        ]
    return round(mean(wins), 4)


def write(files: list[Path]) -> None:
    """claims/scale/<id>.json of every system whose arms are among the rows, with the last figures of each arm by seed."""
    rows = [row for file in files for row in json.loads(file.read_text())]
    told = ("task", "lr", "steps", "hardware", "versions", "date")
    for id, others in BESIDE.items():
        arms = {arm: sorted((r for r in rows if r["arm"] == arm), key=lambda r: r["seed"]) for arm in (id, *others)}
        if not all(arms.values()):
            print(f"{id}: no rows of {', '.join(a for a, some in arms.items() if not some)}")
            continue
        kept = {arm: [{k: r[k] for k in ("seed", "points", "process_reward_model") if k in r} | {"reward": r["figures"]["reward"]}
                      for r in some] for arm, some in arms.items()}  # fmt: skip
        last = {arm: {k: [r["points"][-1][k] for r in some] for k in ("sampled", "greedy", "tokens")}
                | {"sampled on the way": [round(mean(p["sampled"] for p in r["points"]), 4) for r in some]}
                for arm, some in arms.items()}  # fmt: skip
        found = {"id": id, "model": "SmolLM2-135M-Instruct", **{k: rows[0][k] for k in told}, "samples": rows[0]["samples_drawn"],
                 "command": "python examples/smollm2_scale.py --task tasks/word-problems --lr 5e-5 --steps 30 --seeds 0 1 2", "last": last, "arms": kept}  # fmt: skip
        file = SCALE / f"{id}.json"
        found["found"] = (
            json.loads(file.read_text()).get("found", "") if file.is_file() else ""
        )  # written by hand; read it again
        file.write_text(json.dumps(found, indent=1) + "\n")
        print(id, json.dumps(last))


def mean(xs: Iterable[float]) -> float:
    some = list(xs)
    return sum(some) / max(len(some), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--task", help="a folder with train.jsonl and test.jsonl")
    parser.add_argument(
        "--write", type=Path, nargs="+", metavar="ROWS", help="nothing but claims/scale from these rows"
    )
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), metavar="ARM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, help="a JSON file with a row for each arm and seed")
    args = parser.parse_args()
    if args.write:
        return write(args.write)
    if not args.task or not args.out:
        parser.error("say which --task, and where the rows go with --out")
    policy = load_model(args.model)
    start = {k: v.clone() for k, v in policy.state_dict().items()}
    env, rows = task(f"{args.task}(reward='numeric')"), []
    for arm in args.arms:
        for seed in args.seeds:
            policy.load_state_dict(start)
            method, n = ARMS[arm], ARMS[arm].rollout.defaults().get("n", N)
            config = Config(
                seed=seed, steps=args.steps, prompts=PROMPTS * N // n, num_generations=n, lr=args.lr, sampling=Sampling(args.max_tokens),
                micro_tokens=65536,
            )  # fmt: skip
            extra: dict[str, Any] = {}
            if "after" in arm:  # when half of the answers are right, a model of steps has something to learn from
                learn(policy, plain, env, dataclasses.replace(config, steps=WARM_UP, seed=seed + 500), every=WARM_UP)
            scorer = step_model(policy, env, config, extra)() if method is min_form else None
            got = learn(policy, method, env, config, scorer, every=10)
            rows.append(
                {"arm": arm, "seed": seed, "task": Path(args.task).name, "lr": args.lr, "steps": args.steps, **got, **extra, **about()}
            )  # fmt: skip
            last = got["points"][-1]
            print(f"{arm} seed {seed}: sampled {last['sampled']:.1%}, greedy {last['greedy']:.1%}, {last['tokens']:.1f} tokens, "
                  f"{last['seconds']:.0f} s {extra}", flush=True)  # fmt: skip
            args.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
