"""The preference pairs that ship: school questions with two answers each, preferred by a stated rule.

    right      a worked answer that is right, over one that follows the task's wrong habit
    polite     the register that is liked best, over another one (environments/language/courtesy.py)
    finished   a worked answer, over the same one that stops before it says the result

`python examples/make_pairs.py` writes posttrain/environments/pairs/school_pairs.jsonl; the same rows every time.
`posttrain run dpo` and `posttrain run reward-model` learn from them when no --task is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from posttrain.core import rng as draws
from posttrain.environments.language.courtesy import utility
from posttrain.environments.school import TASKS, THINK, school
from posttrain.environments.school.instructions import variants
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

FILE = Path(__file__).resolve().parent.parent / "posttrain" / "environments" / "pairs" / "school_pairs.jsonl"
SUBJECTS = ("arithmetic", "word_problems", "counting", "comparison", "units")
CLEAR = 0.5  # polite pairs differ in utility by at least this much
ROWS = {"right": 290, "polite": 150, "finished": 80}
Row = dict[str, str]


def right(i: int) -> Row | None:
    """One question as a careful pupil writes it down, and as one who follows the habit."""
    subject, level = SUBJECTS[i % len(SUBJECTS)], 1 + i % 3
    made = TASKS[subject].make
    good = made(draws.python("pairs", "right", i), level, CAREFUL)
    bad = made(draws.python("pairs", "right", i), level, NoisySolver(draws.python("habit", i), 0.0, (0.0, 0.0)))
    if good.question != bad.question or good.answer == bad.answer:
        return None  # the habit does no harm here
    return row("right", good.question + THINK, worked(good.steps, good.answer), worked(bad.steps, bad.answer))


def polite(i: int) -> Row | None:
    """Two registers of an answer to one request: the one of higher utility is preferred."""
    prompt = school("instructions", 1, think=False).prompt(i)
    told = sorted(set(variants(prompt, draws.python("pairs", "polite", i)).values()))
    by_worth = sorted(told, key=lambda text: utility(prompt, text))
    worse, better = by_worth[0], by_worth[-1]
    if utility(prompt, better) - utility(prompt, worse) < CLEAR:
        return None
    return row("polite", prompt.last, better, worse)


def finished(i: int) -> Row | None:
    """A worked answer, and the same one broken off within its steps."""
    subject = SUBJECTS[i % len(SUBJECTS)]
    good = TASKS[subject].make(draws.python("pairs", "finished", i), 1 + i % 3, CAREFUL)
    words = good.steps.split()
    if len(words) < 2:
        return None
    cut = " ".join(words[: draws.python("cut", i).randrange(1, len(words))])
    return row("finished", good.question + THINK, worked(good.steps, good.answer), f"<think>{cut}")


def worked(steps: str, answer: str) -> str:
    return f"<think>{steps}</think>{answer}"


def row(rule: str, prompt: str, chosen: str, rejected: str) -> Row:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "rule": rule}


def pairs() -> list[Row]:
    """The rows of every rule, each question once, mixed by their hash."""
    kinds: dict[str, Callable[[int], Row | None]] = {"right": right, "polite": polite, "finished": finished}
    found: dict[str, Row] = {}
    for rule, n in ROWS.items():
        i, have = 0, 0
        while have < n:
            made = kinds[rule](i)
            i += 1
            if made is not None and made["prompt"] not in found:
                found[made["prompt"]] = made
                have += 1
    return sorted(found.values(), key=lambda r: draws.key("pairs", r["prompt"]))


def main() -> None:
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text("".join(json.dumps(pair) + "\n" for pair in pairs()))
    print(f"{sum(ROWS.values())} pairs, {FILE.stat().st_size / 1000:.0f} kB, in {FILE}")


if __name__ == "__main__":
    main()
