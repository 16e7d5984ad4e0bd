"""Thoughts with room to be shortened: the embedded model writes each sum of a word problem once, so a short SFT on worked answers, in
which the last sum is written up to five more times, makes a start that rambles. Every arm begins from it, with the same rows.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from claims.machinery.arms import Bench, Further
from posttrain.core.protocols import Environment, Policy
from posttrain.core.sampling import Sampling
from posttrain.core.thinking import CLOSE, OPEN, thought_of
from posttrain.environments.task import task as make_task
from posttrain.evals.accuracy import answers, held_out

TASK = "word_problems(level=2) + word_problems(level=5)"  # one or two sums, or three of larger numbers
WINDOW, ROWS, STEPS, AGAIN = 96, 1280, 80, 5
HOW: dict[str, Any] = {"max_tokens": WINDOW}


def rambling(bench: Bench) -> Path:
    """The start of every arm: 80 updates of SFT on 1,280 worked answers, made longer."""
    env, rng = make_task(TASK, think=True), Random(bench.seed)
    prompts = [env.prompt(100_000 + 1000 * bench.seed + i) for i in range(ROWS)]
    rows = [
        {
            "prompt": p.content[0]["content"],
            "response": longer(f"{OPEN}{p.info['steps']}{CLOSE}{p.answer}", rng.randint(0, AGAIN)),
        }
        for p in prompts
    ]
    return bench.once("rambling", method="sft", task=bench.rows("rambling", rows), steps=STEPS, prompts=16)


def longer(text: str, again: int) -> str:
    """The answer with the last sum of its thought so many times more; one without a closed thought stays as it is."""
    found = thought_of(text)
    sums = text[found.start : found.end].split()
    if not found.closed or not sums:
        return text
    return f"{OPEN}{' '.join(sums + sums[-1:] * again)}{CLOSE}{text[found.answer :]}"


def by_level(problems: int, how: dict[str, Any]) -> Further:
    """Of held-out answers: accuracy, length and share of thoughts for easy and for hard questions, by how much more often it thinks about
    hard ones, the share of the rarer mode (thought or none), and the share that is cut off."""

    def look(policy: Policy, env: Environment) -> dict[str, float]:
        made = answers(policy, env, held_out(env, problems, "test"), Sampling(**how))
        out: dict[str, float] = {}
        for name, levels in (("easy", (1, 2)), ("hard", (3, 4, 5))):
            mine = [(g.prompt, r) for g in made if g.prompt.info["level"] in levels for r in g.rollouts]
            if mine:
                out[f"{name}_accuracy"] = sum(env.grade(p, r.text) for p, r in mine) / len(mine)
                out[f"{name}_length"] = sum(len(r) for _, r in mine) / len(mine)
                out[f"{name}_thinks"] = sum(not thought_of(r.text).empty for _, r in mine) / len(mine)
        if "easy_thinks" in out:
            out["chooses"] = out["hard_thinks"] - out["easy_thinks"]
        every = [r for g in made for r in g.rollouts]
        lengths: dict[bool, list[int]] = {True: [], False: []}
        for g in made:
            for r in g.rollouts:
                lengths[env.grade(g.prompt, r.text) > 0.5].append(len(r))
        if all(lengths.values()):
            right, wrong = (sum(lengths[x]) / len(lengths[x]) for x in (True, False))
            out["longer_when_wrong"] = wrong - right
        thinks = sum(not thought_of(r.text).empty for r in every) / len(every)
        return out | {
            "thinks": thinks,
            "rarer": min(thinks, 1 - thinks),
            "cut": sum(r.truncated for r in every) / len(every),
        }

    return look
