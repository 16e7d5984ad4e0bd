"""Courtesy on the embedded model: small requests (`Thank Mia.`), a hidden taste of what an answer is worth, and noisy comparisons by it.

The taste (posttrain/environments/language/courtesy.py) is never what an arm is trained on: training sees comparisons of the start's own
answers, or plain counts of words. It is the gold by which arms are judged, on prompts that no training has seen.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from claims.machinery.arms import Bench
from posttrain.core import rng
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.environments.base import size_of
from posttrain.environments.language.courtesy import utility
from posttrain.environments.language.labels import label_pairs
from posttrain.environments.school.instructions import words_of
from posttrain.environments.task import pair_task, task
from posttrain.evals.accuracy import answers, held_out

HOW: dict[str, Any] = {"max_tokens": 32}
ASKED: dict[str, Any] = {"task": "instructions", "level": 1, "think": False, "prompts": 8, "sampling": HOW}
GOLD = "from posttrain.environments.language.courtesy import utility\n\n\ndef gold(prompt, text):\n    return utility(prompt, text)\n"
APART = 100_000  # prompts of comparisons begin here, those of training at 0


def comparisons(bench: Bench, count: int, noise: float = 0.1, temperature: float = 0.5, bias: float = 0.0) -> str:
    """A file of labelled pairs: two of the start's own answers to a request each, the better one preferred, as noisy as people are.

    bias: the share of pairs in which the longer answer wins, whatever it is worth.
    """
    env = requests()
    prompts = [env.prompt(APART + 10_000 * bench.seed + i) for i in range(count + count // 4)]
    made = bench.policy(None).sample(prompts, 2, Sampling(**HOW), bench.seed, -1)
    texts = [[r.text for r in some] for some in made]
    rows = label_pairs(prompts, texts, utility, noise, temperature, bench.seed)[:count]
    told = []
    for r in rows:
        both = [r["chosen"], r["rejected"]]
        if rng.python("longer wins", bench.seed, r["id"]).random() < bias:
            both.sort(key=len, reverse=True)
        told.append({"prompt": r["prompt"][0]["content"], "chosen": both[0], "rejected": both[1]})
    return bench.rows("pairs", told)


def triples(bench: Bench, count: int, noise: float = 0.15, n: int = 6) -> list[dict[str, Any]]:
    """Of n answers of the start to a request the best one by the taste, and two others, of which the better one is preferred unless by mistake;
    in that order."""
    env = requests()
    prompts = [env.prompt(APART + 10_000 * bench.seed + i) for i in range(2 * count)]
    made = bench.policy(None).sample(prompts, n, Sampling(**HOW), bench.seed, -1)
    rows: list[dict[str, Any]] = []
    for p, answers_ in zip(prompts, made, strict=True):
        texts = sorted(dict.fromkeys(r.text.strip() for r in answers_ if r.text.strip()), key=lambda t: utility(p, t))
        draw = rng.python("triples", bench.seed, p.id)
        if len(texts) > 2 and utility(p, texts[-1]) > utility(p, texts[-2]):
            two = sorted(draw.sample(texts[:-1], 2), key=lambda t: utility(p, t), reverse=True)
            two = two[::-1] if draw.random() < noise else two
            rows.append({"prompt": p.last, "responses": [texts[-1], *two], "ranks": [1, 2, 3]})
    return rows[:count]


def passes(pairs: str, epochs: float, prompts: int) -> dict[str, int]:
    """Settings of a run that goes so often over a file of pairs."""
    return {"steps": round(epochs * size_of(pair_task(pairs), "train") / prompts), "prompts": prompts}


def requests(level: int = 1) -> Environment:
    return task("instructions", level=level, think=False)


def gold_file(bench: Bench) -> str:
    """The taste as a reward that a plan may report."""
    path = bench.folder / "gold.py"
    path.write_text(GOLD)
    return f"{path}:gold"


def oracle(bench: Bench, **faults: float | bool) -> str:
    """A judge that knows the taste, with these faults (posttrain/rewards/scorers/oracle.py), as a setting."""
    told = ", ".join(f"{name}={value!r}" for name, value in faults.items())
    return f"oracle(utility='{gold_file(bench)}', {told}, seed={bench.seed})"


def gold(policy: Policy, env: Environment, problems: int = 200, n: int = 2, split: str = "test") -> dict[str, float]:
    """The taste's mean over n answers to each of 200 held-out requests, and their words."""
    groups = answers(policy, env, held_out(env, problems, split), Sampling(**HOW), n)
    told = [(g.prompt, r.text) for g in groups for r in g.rollouts]
    return {
        "gold": fmean(utility(p, text) for p, text in told),
        "words": fmean(len(words_of(text)) for _, text in told),
    }


def notes(run: Path) -> Any:
    """What a plan reported."""
    return json.loads((run / "summary.json").read_text())
