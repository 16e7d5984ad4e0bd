"""docs/which-objective.md from the records: by what one has, the systems that were tried, and what came out.

Nothing here is written by hand but the questions and which systems answer them, so the page cannot say more than the records do.

python -m posttrain.view.methods_page          writes it too
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

from posttrain.core.evidence import as_run, outcome
from posttrain.core.index import PACKAGE, Row, index
from posttrain.core.method import find_method
from posttrain.view.attempts import interval
from posttrain.view.methods_page import PAGE, page_of, systems
from posttrain.view.systems_table import agents_table, systems_table

FILE = PAGE.parent / "docs" / "which-objective.md"
SWEEP = PACKAGE.parent / "benchmarks" / "sweeps" / "systems.json"
TURNS = SWEEP.with_name("turn_credit.json")
AGENTS = SWEEP.with_name("agent_systems.jsonl")
ARMS = {"calls": ("start", "toolrl", "all or nothing"), "search": ("start", "reseek", "answer alone")}  # of it
# what one has -> (where to start, the systems that answer it)
QUESTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "The reward can be checked, answers are fresh": ("grpo", (
        "lite-ppo", "dapo", "dr-grpo", "gspo", "cispo", "maxrl", "pass-at-k-training", "clip-cov", "kl-cov", "vineppo", "remax", "oreal", "t1",
        "treepo", "one-shot-rlvr")),
    "The run is long": ("grpo", ("prorl", "t1")),
    "There are worked answers too, or success is rare": ("sft, then grpo", ("reft", "dr-po", "t1")),
    "Answers are old, or logged": ("grpo", ("topr", "copg", "raft")),
    "Preference pairs only": ("dpo", (
        "dpo", "rlhf-workflow", "summarize-hf", "salsa", "copg", "rlhf-generalisation-diversity", "cpl", "mixed-preference-opt",
        "implicit-reward-bridge", "hft", "spo-selfsup-degree")),
    "Ranked lists, or a gold answer beside a pair": ("rrhf", ("pro", "tpo")),
    "People who want different things": ("dpo", ("maxmin-rlhf", "dpa")),
    "Answers of mixed quality, and nothing is sampled": ("sft", ("openchat-crlft", "a-lol", "ift", "scalable-irl-lm")),
    "A reward, and learning in rounds": ("rlhf-workflow", ("apo-accelerated", "brain", "raft")),
    "A judge that compares two answers": ("grpo on win rates", (
        "spo-minimaximalist", "nash-md", "nash-mp", "inpo", "writing-zero", "pairwise-rl", "debate-reward")),
    "A judge that gives points or ranks, and no labels of people": ("dpo on its best and worst answers", (
        "codeultrafeedback", "ultrafeedback", "osp", "cyclealign", "huatuogpt", "okapi")),
    "A learned reward, and it gets hacked": ("ppo with a KL price", (
        "par", "superhf", "rm-ensemble-conservative", "helping-or-herding", "reward-robust-rlhf", "autorule", "dr-irl")),
    "Rewards for parts of an answer": ("grpo on the outcome", ("pure", "mrt", "fine-grained-rlhf", "text2grad")),
    "Several rewards, or a limit that must hold": ("grpo on their sum", ("constrained-rlhf", "hc-rlhf", "barfi", "authormist")),
    "Answers are too long, or thoughts that are not needed": ("grpo", (
        "grpo-lambda", "laser", "siri", "demystify-long-cot", "autothink", "adacot", "open-rs")),
    "Many tasks, long documents, open questions": ("grpo", ("qwenlong-l15", "memory", "rlmt")),
    "Programs, or words about what was wrong": ("grpo", ("leti", "dstc", "rise")),
    "Turns and tools": ("grpo", (
        "toolrl", "score-self-correct", "tl-training", "multi-turn-agentic-guide", "archer", "tgrl-tool", "ssrl", "zerosearch", "reseek", "frugalrag",
        "ssp", "doctoragent-rl", "eef", "agent-r")),
    "Not the weights, but a prompt or an input": ("", ("rlprompt", "rl-pgd-robustness")),
}  # fmt: skip
_LANGUAGE = ("pocket", "real")  # levels at which a language model is trained


def objective_page() -> dict[Path, str]:
    return {FILE: page()}


def page() -> str:
    out = [
        "# Which objective should I use?", "",
        "Made from the records by `make pages`: for what you have, the systems whose claim was tried, and how it came out. *Shown* means that the",
        "interval of every check lies above its margin ([claims](claims.md)); what is not shown was not refuted either, and every number is",
        "of a small model. `pocket` is the embedded language model, `table` a lookup table, which says what is true in principle and little",
        "about language models. `with 2x the samples` behind a check: what the arm that is to be better spent, against the other, where the two differ by",
        "more than a fifth. Start with the plain method that is named, and take what was shown on a language model first.", "",
    ]  # fmt: skip
    known = index()["claims"]
    for question, (start, ids) in QUESTIONS.items():
        told = [known[id] for id in ids if id in known and known[id]["attempts"]]
        if told:
            out += [f"## {question}", "", *_start(start, told), *_rows(told), ""]
    if SWEEP.is_file():
        out += _systems(json.loads(SWEEP.read_text()))
    if TURNS.is_file():
        out += _turns(json.loads(TURNS.read_text()))
    if AGENTS.is_file():
        out += _agents([json.loads(line) for line in AGENTS.read_text().splitlines()])
    return "\n".join(out)


def _start(start: str, told: list[Row]) -> list[str]:
    shown = [f"`{c['id']}`" for c in told if _shown(c) and c["attempts"][-1]["level"] in _LANGUAGE]
    found = f"Shown on a language model: {', '.join(shown)}." if shown else "Nothing was shown on a language model."
    return [f"{f'Start with {start}. ' if start else ''}{found}", ""]


def _shown(c: Row) -> bool:
    """Whether the claim as it stands was shown: an attempt with other checks or seeds is of an earlier one."""
    return c["attempts"][-1]["verdict"] == "shown" and not c["attempts"][-1].get("earlier")


def _rows(told: list[Row]) -> list[str]:
    pages = {r["id"]: page_of(r).removeprefix("docs/") for r in systems()}
    lines = ["| system | outcome | checks |", "|---|---|---|"]
    for c in sorted(told, key=lambda c: (c["attempts"][-1]["level"] not in _LANGUAGE, not _shown(c), c["id"])):
        last = c["attempts"][-1]
        checks = "; ".join(interval(x | {"recorded": None}) for x in last["checks"])
        lines.append(f"| [{c['id']}]({pages[c['id']]}) | {last['level']}: {outcome(as_run(c, last))} | {checks} |")
    return lines


def _where(rows: list[dict[str, Any]]) -> str:
    """Each machine with how many of the runs it made."""
    made = Counter(f"{r['hardware']}, {r['versions']}, {r['date']}" for r in rows)
    return "; ".join(f"{place} ({n} runs)" for place, n in made.items()) if len(made) > 1 else next(iter(made))


def _turns(rows: list[dict[str, Any]]) -> list[str]:
    """How credit is given over the turns of an episode."""
    first = rows[0]
    seeds = len({r["seed"] for r in rows})
    return [
        "## Which credit for episodes of several turns?", "",
        f"`{first['model']}` in a guessing game of three turns, {first['steps']} steps of {first['prompts']} games x {first['n']} tries, as many updates each, "
        f"{seeds} seeds; mean reward of held-out games in percent (every seed in brackets). {_where(rows)};",
        "`python -m benchmarks.systems --help` has the command. `grpo` shares one credit over the whole episode; `advantage=turns` compares what came after",
        "each turn with the same turn of the others, without bias; gigpo adds steps from the same state; `turn_gae` asks a critic at the beginning of each turn.", "",
        *systems_table(rows), "",
    ]  # fmt: skip


def _systems(rows: list[dict[str, Any]]) -> list[str]:
    one = rows[0]
    told = (
        f"{one['steps']} steps of {one['n']} answers to each of {one['prompts']} questions, at most 4 updates a step, the package's learning rate "
        f"for all; {one['model']}, held-out accuracy in percent with every seed ({one['hardware']}, {one['versions']}, {one['date']}; "
        f"`python -m benchmarks.systems`). Tokens and updates are means over runs.{_fewer(rows)}"
    )
    return [
        "## Twelve systems on one published model, at equal answers",
        "",
        told,
        "",
        *systems_table(_as_run(rows)),
        "",
    ]


def _fewer(rows: list[dict[str, Any]]) -> str:
    """Who took fewer updates than the others, and why."""
    of = {r["system"]: fmean(x["spent"]["updates"] for x in rows if x["system"] == r["system"]) for r in rows}
    few = [f"`{system}` took {n:.0f}" for system, n in sorted(of.items()) if n < max(of.values())]
    if not few:
        return ""
    why = "groups whose answers all earned the same are left out, so that late in a run some updates have no group"
    return f" Updates differ: {' and '.join(few)} of {max(of.values()):.0f}, since {why}."


def _as_run(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the systems' names as they were run: `benchmarks.systems` asks no other prompts in the place of groups that are left out."""
    refill = {r["system"] for r in rows if find_method(r["system"]).rounds > 1}
    return [r | {"system": f"{r['system']}, without refilled batches"} if r["system"] in refill else r for r in rows]


def _agents(rows: list[dict[str, Any]]) -> list[str]:
    one, seeds = rows[0], len({r["seed"] for r in rows})
    return [
        "## Two systems for agents on one published model", "",
        f"`{one['model']}` was first shown the form on {one['shown']} rows at most ({one['passes']:g} passes; `start`), then learned for {one['steps']} steps of "
        f"{one['prompts']} rows, {seeds} seeds; held-out rows that were right, in percent (every seed in brackets). `calls`: just the calls that were logged",
        "(BFCL v4), ToolRL paid by parts beside the same reward where only all right counts. `search`: exact answers to questions of HotpotQA and 2WikiMultihopQA,",
        f"ReSeek beside GRPO on the answer alone over the same index. {one['hardware']}, {one['versions']}; `python -m benchmarks.agent_systems`.", "",
        *agents_table(rows), "", *_missing(rows),
    ]  # fmt: skip


def _missing(rows: list[dict[str, Any]]) -> list[str]:
    """Runs that the comparison is without, so far."""
    seeds, there = {r["seed"] for r in rows}, {(r["track"], r["system"], r["seed"]) for r in rows}
    left = [
        f"{system} (seeds {', '.join(map(str, some))})"
        for track, systems in ARMS.items()
        for system in systems
        if (some := sorted(k for k in seeds if (track, system, k) not in there))
    ]
    return [f"Not run yet, so that nothing can be concluded there: {'; '.join(left)}.", ""] if left else []
