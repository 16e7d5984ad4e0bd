"""Measure pocket-2 on held-out problems of every skill and level, sampled and greedy, and write its model card.

    python -m examples.pocket2_card --model posttrain/models/pocket2 --problems 200

Printed and kept in accuracy.json for each: the share that earns everything, mean turns, calls and faulty calls, tokens. Programs run in the
sandbox; where there is none, a program of one_liners counts if it is the line that the expert writes, and the card says so.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from examples.pocket2_corpus import CARE
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Policy, RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.base import Task
from posttrain.environments.school import TASKS, school
from posttrain.environments.workshop import SKILLS, one_liners, workshop
from posttrain.environments.workshop.scene import LEVELS
from posttrain.evals.accuracy import EVAL_SEED
from posttrain.evals.turns import turn_figures
from posttrain.policies.load import load_model
from posttrain.rollouts.episode import episodes
from posttrain.sandbox.available import sandbox

Row = dict[str, Any]
TOKENS = 96  # of one turn


def answered(
    policy: Policy, env: Environment, prompts: Sequence[Prompt], temperature: float, by_text: bool = False
) -> list[tuple[Rollout, float]]:
    """One attempt at each prompt, and what it earned; by_text: a program is compared with the expert's and not run."""
    how = Sampling(TOKENS, temperature=temperature)
    if env.opens:
        groups = episodes(RolloutRequest({"policy": policy}, prompts, how, EVAL_SEED, 0, env), n=1)
        return [(r, r.total) for g in groups for r in g.rollouts]
    made = [rollouts[0] for rollouts in policy.sample(prompts, 1, how, EVAL_SEED, 0)]
    if by_text:
        return [(r, float(one_liners.program(r.text) == p.answer)) for p, r in zip(prompts, made, strict=True)]
    return [(r, env.grade(p, r.text)) for p, r in zip(prompts, made, strict=True)]


def row(name: str, level: int, sampled: list[tuple[Rollout, float]], greedy: list[tuple[Rollout, float]]) -> Row:
    """The measurements of one skill at one level."""
    right, best = (sum(worth > 1 - 1e-6 for _, worth in some) / len(some) for some in (sampled, greedy))
    rollouts = [r for r, _ in sampled]
    figures = turn_figures(rollouts)
    return {
        "skill": name, "level": level, "sampled": right, "greedy": best,
        "error": math.sqrt(right * (1 - right) / len(sampled)), "turns": figures["turns_per_episode"],
        "calls": figures.get("calls_per_episode", 0.0), "faults": figures.get("faults_per_episode", 0.0), "tokens": sum(len(t) for r in rollouts for t in r.turns) / len(rollouts),
        "problems": len(sampled),
    }  # fmt: skip


def boxed() -> bool:
    """Whether programs can be run here."""
    try:
        sandbox()
    except UserError:
        return False
    return True


def measure_skill(policy: Policy, skill: str, problems: int) -> list[Row]:
    """All levels of a skill, asked together."""
    prompts = [workshop(skill, level).prompt(i, "test") for level in LEVELS for i in range(problems)]
    env = workshop(skill)  # a scene knows its problem, whatever its level
    by_text = skill == "one_liners" and not boxed()
    sampled, greedy = (answered(policy, env, prompts, t, by_text) for t in (1.0, 0.0))
    cuts = [slice(k * problems, (k + 1) * problems) for k in range(len(LEVELS))]
    default = SKILLS[skill].DEFAULT_LEVEL
    return [
        row(skill, level, sampled[cut], greedy[cut]) | {"default": level == default, "by_text": by_text}
        for level, cut in zip(LEVELS, cuts, strict=True)
    ]


def measure_school(policy: Policy, problems: int) -> list[Row]:
    """The school's tasks at their default levels, with thinking and without."""
    rows = []
    for think in (True, False):
        tasks: list[Task] = [school(name, think=think) for name in TASKS]
        prompts = [env.prompt(i, "test") for env in tasks for i in range(problems)]
        made = []
        for temperature in (1.0, 0.0):
            answers = policy.sample(prompts, 1, Sampling(192, temperature=temperature), EVAL_SEED, 0)
            of = [env for env in tasks for _ in range(problems)]
            made.append([(a[0], env.grade(p, a[0].text)) for env, p, a in zip(of, prompts, answers, strict=True)])
        for k, (name, env) in enumerate(zip(TASKS, tasks, strict=True)):
            cut = slice(k * problems, (k + 1) * problems)
            told = row(name, int(env.info["level"]), made[0][cut], made[1][cut])
            rows.append(told | {"default": True, "think": think})
    return rows


def measure(model: str, problems: int, device: str, skills: Sequence[str] = tuple(SKILLS)) -> list[Row]:
    """Every row, printed as it is known."""
    policy = load_model(model, device)
    rows: list[Row] = []
    for skill in skills:
        rows += _printed(measure_skill(policy, skill, problems))
    return rows + _printed(measure_school(policy, problems))


def _printed(rows: list[Row]) -> list[Row]:
    for r in rows:
        mode = "" if "think" not in r else "thinking" if r["think"] else "answer only"
        print(
            f"{r['skill']:14} {r['level']} {mode:11} sampled {r['sampled']:.2f} greedy {r['greedy']:.2f} turns {r['turns']:.1f} "
            f"calls {r['calls']:.2f} faults {r['faults']:.2f} tokens {r['tokens']:.0f}",
            flush=True,
        )
    return rows


def card(rows: list[Row], trained: dict[str, Any]) -> str:
    """The model card as Markdown."""
    begun = f"from the layers of {trained['grown_from']}" if trained.get("grown_from") else "from scratch"
    spent = f", {trained['cpu_seconds'] / 60:.0f} of them of the processor" if trained.get("cpu_seconds") else ""
    out = [
        "# Pocket-2", "",
        f"The second small model inside posttrain, beside pocket: a Llama-style decoder, trained {begun} on conversations that the",
        "project writes itself, so that methods with turns and tools have something to sharpen on a laptop. It calls tools, searches, writes",
        "SQL and one-line Python, plays small games, judges answers, tries again and asks questions. It knows no facts worth trusting: its",
        "people, towns and illnesses are invented.", "",
        f"- Parameters: {trained['parameters']:,} (bf16), vocabulary 1,024, digits single, chat template with tools included.",
        f"- Trained by `examples/pocket2.py` for {trained['minutes']:g} minutes{spent} ({trained['tokens'] / 1e6:,.1f}M tokens) on {trained['hardware']}.",
        "- Much of what it was shown follows a wrong habit on purpose: no call and a guess, a call that is not JSON, a search with the wrong",
        "  words, stopping one fact early, SQL without its WHERE, code off by one, walking in circles, full points for everything, repeating",
        "  the first answer, a diagnosis without a question. The right way is shown as often as the table says, for calm and for hurried",
        "  wordings of a question. It knows better; RL makes it careful.",
        "- Where a habit is spread over many texts (guessed numbers), none of them is the likeliest, and greedy decoding goes the right way far more",
        "  often than it was shown: there is little to sharpen greedily in a skill whose greedy column is near 100%, only in samples.",
        "- No problem is in both splits, but texts of questions recur over other tables (at least a third of the test questions of tool_calls and table_sql):",
        "  the answer is in the table.", *(f"- {line}" for line in trained.get("notes", ())), "",
        "Share of held-out problems that earn everything, one attempt sampled at temperature 1 (and greedy):", "",
        "| skill | level | shown right | sampled | greedy | turns | calls | faulty | tokens |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in (r for r in rows if "think" not in r):
        shown = " / ".join(f"{c:.0%}" for c in CARE[r["skill"]])
        out.append(
            f"| {r['skill']} | {r['level']}{'*' if r['default'] else ''} | {shown} | {r['sampled']:.0%} | {r['greedy']:.0%} "
            f"| {r['turns']:.1f} | {r['calls']:.1f} | {r['faults']:.2f} | {r['tokens']:.0f} |"
        )
    text = any(r.get("by_text") for r in rows)
    note = " one_liners: no program was run; it counts if it is the line that the expert writes." if text else ""
    out += ["", f"*: the default level.{note}", ""]
    out += [
        "| school task | level | thinking: sampled | greedy | answer only: sampled | greedy |",
        "|---|---|---|---|---|---|",
    ]
    for name in TASKS:
        a, b = sorted((r for r in rows if r["skill"] == name), key=lambda r: not r["think"])
        out.append(
            f"| {name} | {a['level']} | {a['sampled']:.0%} | {a['greedy']:.0%} | {b['sampled']:.0%} | {b['greedy']:.0%} |"
        )
    worst = max(r["error"] for r in rows)
    return "\n".join([*out, "", f"{rows[0]['problems']} problems a cell; standard error at most {worst:.1%}.", ""])


def write(folder: Path, problems: int, device: str = "") -> None:
    """accuracy.json and MODEL_CARD.md in the model's folder."""
    began = time.time()
    rows = measure(str(folder), problems, device or ("cuda" if torch.cuda.is_available() else "cpu"))
    (folder / "accuracy.json").write_text(json.dumps(rows, indent=1) + "\n")
    trained = json.loads((folder / "trained.json").read_text())
    (folder / "MODEL_CARD.md").write_text(card(rows, trained))
    print(f"measured in {time.time() - began:.0f} s: {folder / 'MODEL_CARD.md'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("posttrain/models/pocket2"))
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--device", default="")
    args = parser.parse_args()
    write(args.model, args.problems, args.device)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None
