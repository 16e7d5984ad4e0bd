"""Two systems for agents on a published model and on public rows, each beside a baseline with as many samples and updates, three seeds.

    calls     ToolRL on logged calls (BFCL v4, turns that make one call), paid by parts, against the same paid only where all is right
    search    ReSeek over an index of paragraphs (HotpotQA, 2WikiMultihopQA), against GRPO on the answer alone (ZeroSearch without noise)

A model of 135M parameters does neither: every run is first shown the form on rows of its own (supervised, the same for all arms of a seed), then
learns from other rows, and is measured on held-out ones. `start` is what it was after it was shown the form.

python -m benchmarks.agent_systems --make DATA --data rows                       (DATA: a folder with bfcl_v4 and multihop_qa; needs no GPU)
python -m benchmarks.agent_systems --data rows --model smollm2 --jobs 6 --out agent_systems.jsonl        (a process for each track and seed)
python -m benchmarks.agent_systems --out agent_systems.jsonl --table                                    (no run: what is there, as Markdown)

A line is added to the file as each arm ends; a killed command goes on with the arms that are missing.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import hashlib
import json
import multiprocessing
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from claims.machinery.arms import Tally
from claims.worlds.agents import AgentBench, Figure, share, told
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part
from posttrain.core.types import Message
from posttrain.environments.data import data
from posttrain.environments.gold_calls import calling
from posttrain.environments.questions import Layout
from posttrain.environments.searching import STOP, Document, Index, information
from posttrain.policies.load import load_model
from posttrain.rollouts.sample import sample
from posttrain.systems.agents_multiturn import reseek as seek
from posttrain.systems.agents_multiturn import toolrl as tools
from posttrain.view.systems_table import agents_table

PLAIN = Layout(reward="exact_match")  # of rows that systems grade in their own ways; needs no package
CALLS, WORDS = ("simple_python", "live_simple", "multiple"), 900  # files of BFCL; characters of a row's tools at most
ASKED, CHARACTERS = ("hotpotqa_200", "hotpotqa_100_reflexion", "2wikimultihop"), 400  # of a paragraph
TURNS, K = 3, 2  # searches of an episode, documents of a search
ARMS = {
    "calls": {"start": "", "toolrl": "toolrl(steps=STEPS)", "all or nothing": "toolrl(steps=STEPS, grain='coarse')"},
    "search": {
        "start": "",
        "reseek": f"reseek(steps=STEPS, documents=FILE, turns={TURNS}, k={K})",
        "answer alone": f"zerosearch(steps=STEPS, documents=FILE, noise=(0.0, 0.0), turns={TURNS}, k={K})",
    },
}
HOW: dict[str, dict[str, Any]] = {"calls": {"max_tokens": 128}, "search": {"max_tokens": 64, "stop": STOP}}
Row = dict[str, Any]

# ---- rows


def part(identity: object) -> str:
    """shown, train or test: three, five and two of ten, by the hash of what a row is known by."""
    place = hashlib.blake2b(str(identity).encode(), digest_size=2).digest()[0] % 10
    return "shown" if place < 3 else "train" if place < 8 else "test"


def lines(path: Path) -> Iterator[Row]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def call_rows(folder: Path) -> dict[str, list[Row]]:
    """Turns that make one call; of the values that an argument may have, the first."""
    made: dict[str, list[Row]] = {"shown": [], "train": [], "test": []}
    for row in (row for name in CALLS for row in lines(folder / "bfcl_v4" / f"{name}.jsonl.gz")):
        said, gold = row["question"][0], row["ground_truth"]
        if len(said) == len(gold) == 1 and len(json.dumps(row["function"])) <= WORDS:
            ((name, given),) = gold[0].items()
            call = {"name": name, "arguments": {k: v[0] for k, v in given.items() if v[0] != ""}}
            made[part(said)].append({"question": said[0]["content"], "tools": row["function"], "answer": [call]})
    return made


def questions(folder: Path) -> tuple[dict[str, list[Row]], list[Row]]:
    """Questions with the titles that they rest on, and the paragraphs of all; those that are answered yes or no are left out."""
    made: dict[str, list[Row]] = {"shown": [], "train": [], "test": []}
    documents: dict[str, str] = {}
    for row in (row for name in ASKED for row in lines(folder / "multihop_qa" / f"{name}.jsonl.gz")):
        documents |= {c["title"]: " ".join("".join(c["sentences"]).split())[:CHARACTERS] for c in row["context"]}
        titles = list(dict.fromkeys(title for title, _ in row["supporting_facts"]))
        if row["answer"].lower() not in ("yes", "no"):
            made[part(row["question"])].append(
                {"question": row["question"], "answer": row["answer"], "supporting": titles}
            )
    return made, [{"title": t, "text": x} for t, x in documents.items()]


def make(source: Path, folder: Path) -> None:
    asked, documents = questions(source)
    files = {f"calls-{k}": v for k, v in call_rows(source).items()} | {f"search-{k}": v for k, v in asked.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (files | {"documents": documents}).items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{folder / name}.jsonl: {len(rows)} rows")


def rows_of(folder: str, name: str, most: int = 0) -> list[Row]:
    found = [json.loads(line) for line in (Path(folder) / f"{name}.jsonl").read_text().splitlines()]
    return found[:most] if most else found


# ---- what is shown, and how it is measured


def calls_env(rows: Mapping[str, Sequence[Row]]) -> Environment:
    return calling(
        data({k: list(v) for k, v in rows.items()}, layout=PLAIN), tools.instructed, tools.calls_right, "toolrl"
    )


def shown_calls(folder: str, most: int) -> list[list[Message]]:
    """The right call, in the form that is asked for."""
    out = []
    for row in rows_of(folder, "calls-shown", most):
        env = calls_env({"train": [row]})
        (call,) = row["answer"]
        said = f"<think>\n{call['name']} serves this.\n</think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
        out.append([*env.prompt(0).content, {"role": "assistant", "content": said}])
    return out


def shown_searches(folder: str, most: int) -> list[list[Message]]:
    """A search for each title that a question rests on, what it found judged by whether it holds the answer, and the answer."""
    index, out = Index(f"{folder}/documents.jsonl"), []
    for row in rows_of(folder, "search-shown", most):
        prompt = data({"train": [row]}, layout=PLAIN).prompt(0)
        said: list[Message] = [{"role": "user", "content": seek.ASK.replace("{question}", row["question"])}]
        lead = ""
        for title in row["supporting"][:TURNS]:
            found: Sequence[Document] = index.best(title, K)
            said += [_says(f"{lead}<search> {title} </search>"), information(found)]
            lead = f"<judge> {'Yes' if seek.holds_answer(prompt, found) else 'No'} </judge>"
        out.append([*said, _says(f"{lead}<answer> {row['answer']} </answer>")])
    return out


def _says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def judged_well(made: Any) -> float:
    """The share of judgements that say what the documents were."""
    pairs: list[bool] = [verdict == useful for r in made for verdict, useful in r.info["judged"]]
    return sum(pairs) / max(len(pairs), 1)


def measured(job: Row, folder: str) -> tuple[Environment, dict[str, Figure], Part]:
    """The held-out rows, what is read off their answers, and how those are made."""
    few, test = rows_of(folder, f"{job['track']}-train", 8), rows_of(folder, f"{job['track']}-test")
    if job["track"] == "calls":
        parts = {
            "form": lambda made: sum(tools.toolrl_form(r.prompt, r.text) for r in made) / len(made),
            "correct": lambda made: sum(tools.toolrl_correct(r.prompt, r.text) for r in made) / len(made),
        }
        return calls_env({"train": few, "test": test}), parts, sample
    retrieve = Index(f"{folder}/documents.jsonl").retrieve(K)
    env = seek.Seeking(
        data({"train": few, "test": test}, layout=PLAIN), retrieve, lambda prompt, trail: 0.0, TURNS, seek.ASK
    )
    right: Figure = lambda made: share(made, lambda r: r.total > 0.5)  # noqa: E731
    return env, {"right": right, "judged_well": judged_well, "searches": told("searches")}, seek.judged_search


class On(AgentBench):
    """A bench on a model that is named."""

    def __init__(self, seed: int, model: str) -> None:
        super().__init__(seed)
        self.model = model

    def run(self, name: str, **settings: Any) -> Path:
        return super().run(name, **{"model": self.model, "save_every": 10_000} | settings)

    def policy(self, run: Path | None) -> Any:
        return load_model(self.model) if run is None else super().policy(run)


def seed_of(job: Row) -> None:
    """The arms of one track and seed, each a line of the file: shown the form once, trained by each arm from there, measured."""
    import torch

    torch.set_num_threads(1)
    track, folder, how = job["track"], job["data"], HOW[job["track"]]
    shown = (shown_calls if track == "calls" else shown_searches)(folder, job["shown"])
    env, figures, rollout = measured(job, folder)
    more = {"task": f"{folder}/{track}-train.jsonl", "prompts": job["prompts"], "sampling": how, "eval_problems": 8}
    with On(job["seed"], job["model"]) as bench:
        start = bench.taught(shown, job["passes"])
        for system in job["arms"]:
            began, bench.tally, run = time.perf_counter(), Tally(), start
            plan = (
                ARMS[track][system]
                .replace("STEPS", str(job["steps"]))
                .replace("FILE", repr(f"{folder}/documents.jsonl"))
            )
            if plan:
                run = bench.run(f"{system} {job['seed']}".replace(" ", "-"), method=plan, model=str(start), **more)
            sampled = bench.looked(run, env, job["problems"], figures, how, rollout)
            greedy = bench.looked(run, env, job["problems"], figures, how | {"temperature": 0.0}, rollout)
            found = {
                "system": system,
                "plan": plan,
                "sampled": dict(sampled),
                "greedy": dict(greedy),
                "spent": bench.tally.spent(),
            }
            row = {k: v for k, v in job.items() if k not in ("arms", "out")} | found
            curve = {} if run is start else bench.curves[run.name]
            if run is not start:
                shutil.rmtree(run)  # a model and its optimiser
            add(Path(job["out"]), row | {"curve": curve, "seconds": round(time.perf_counter() - began, 1)})


def add(file: Path, row: Row) -> None:
    """One more line, by one process at a time."""
    with file.open("a") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        out.write(json.dumps(row) + "\n")
    print({k: row[k] for k in ("track", "system", "seed", "greedy", "seconds")}, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--make", type=Path, help="the folder with the public sets: write the rows and nothing else")
    parser.add_argument("--data", type=Path, default=Path("rows"))
    parser.add_argument("--tracks", nargs="+", default=[*ARMS], choices=[*ARMS])
    parser.add_argument("--model", default="smollm2")
    for name, value in (("steps", 40), ("prompts", 8), ("shown", 200), ("problems", 120), ("jobs", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--passes", type=float, default=4.0, help="over the rows that are shown")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("agent_systems.jsonl"))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.make:
        make(args.make, args.data)
        return
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    if args.table:
        print("\n".join(agents_table(rows)))
        return
    same = {k: getattr(args, k) for k in ("model", "steps", "prompts", "shown", "problems", "passes")}
    same |= {"data": str(args.data)} | facts()
    jobs: list[Row] = []
    for seed, track in product(args.seeds, args.tracks):
        job = {"track": track, "seed": seed} | same
        done = [r["system"] for r in rows if {k: r.get(k) for k in job} == job]
        if arms := [s for s in ARMS[track] if s not in done]:
            jobs.append(job | {"arms": arms, "out": str(args.out)})
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for _ in pool.imap_unordered(seed_of, jobs):
            pass
    print("\n".join(agents_table([json.loads(line) for line in args.out.read_text().splitlines()])))


def facts() -> Row:
    import torch

    return {
        "hardware": torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores",
        "versions": f"torch {torch.__version__}, Python {platform.python_version()}",
    }


if __name__ == "__main__":
    main()
