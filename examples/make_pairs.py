"""The preferences that ship: school questions with two answers each, preferred by a stated rule; and the same as lists and labels.

    right      a worked answer that is right, over one that follows the task's wrong habit
    polite     the register that is liked best, over another one (environments/language/courtesy.py)
    finished   a worked answer, over the same one that stops before it says the result

    school_lists    a worked answer that is right (1), one that follows the wrong habit (0.5), one that breaks off (0); or the
                    registers of a polite answer by how well they are liked
    school_labels   one answer of each pair, good or bad by its rule

`python examples/make_pairs.py` writes posttrain/environments/pairs/*.jsonl; the same rows every time. Methods that learn from pairs
(`posttrain run dpo`, `posttrain run reward-model`), from lists or from labels take them when no --task is given.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from posttrain.core import rng as draws
from posttrain.environments.language.courtesy import utility
from posttrain.environments.school import TASKS, THINK, school
from posttrain.environments.school.instructions import variants
from posttrain.environments.school.noisy_solver import CAREFUL, NoisySolver

FOLDER = Path(__file__).resolve().parent.parent / "posttrain" / "environments" / "pairs"
FILE = FOLDER / "school_pairs.jsonl"
SUBJECTS = ("arithmetic", "word_problems", "counting", "comparison", "units")
CLEAR = 0.5  # polite pairs differ in utility by at least this much
ROWS = {"right": 290, "polite": 150, "finished": 80}
LISTS = {"right": 160, "polite": 80}
APART = 0.05  # two registers of a list differ in utility by at least this much
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
    return mixed_rows({"right": right, "polite": polite, "finished": finished}, ROWS, "pairs")


def mixed_rows(kinds: dict[str, Callable[[int], Any]], counts: dict[str, int], salt: str) -> list[Any]:
    """So many rows of each rule, each question once, mixed by their hash."""
    found: dict[str, Any] = {}
    for rule, n in counts.items():
        i, have = 0, 0
        while have < n:
            made = kinds[rule](i)
            i += 1
            if made is not None and made["prompt"] not in found:
                found[made["prompt"]] = made
                have += 1
    return sorted(found.values(), key=lambda r: draws.key(salt, r["prompt"]))


def right_list(i: int) -> dict[str, Any] | None:
    """The right answer, the one by habit, and the right one broken off: 1, 0.5 and 0."""
    made = right(i)
    if made is None:
        return None
    words = made["chosen"].partition("</think>")[0].split()
    cut = " ".join(words[: max(1, len(words) // 2)])
    answers = [(made["chosen"], 1.0), (made["rejected"], 0.5), (cut, 0.0)]
    return ranked("right", made["prompt"], answers, i)


def polite_list(i: int) -> dict[str, Any] | None:
    """Up to four registers of an answer to one request, each with its utility."""
    prompt = school("instructions", 1, think=False).prompt(i)
    told = sorted(set(variants(prompt, draws.python("pairs", "polite", i)).values()))
    answers: list[tuple[str, float]] = []
    for text in sorted(told, key=lambda text: -utility(prompt, text)):
        worth = round(utility(prompt, text), 3)
        if len(answers) < 4 and (not answers or answers[-1][1] - worth >= APART):
            answers.append((text, worth))
    return ranked("polite", prompt.last, answers, i) if len(answers) > 2 else None


def ranked(rule: str, prompt: str, answers: list[tuple[str, float]], i: int) -> dict[str, Any]:
    """A row; the answers stand in no order, as in a file that somebody collected."""
    mixed = draws.python("lists", rule, i).sample(answers, len(answers))
    return {"prompt": prompt, "responses": [t for t, _ in mixed], "scores": [s for _, s in mixed], "rule": rule}


def lists() -> list[dict[str, Any]]:
    """The rows of both rules, each question once, mixed by their hash."""
    return mixed_rows({"right": right_list, "polite": polite_list}, LISTS, "lists")


def labels() -> list[dict[str, Any]]:
    """One answer of each pair, which one by its hash."""
    out = []
    for pair in pairs():
        good = draws.key("labels", pair["prompt"]) % 2 == 0
        answer = pair["chosen" if good else "rejected"]
        out.append({"prompt": pair["prompt"], "completion": answer, "label": good, "rule": pair["rule"]})
    return out


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, rows in (("school_pairs", pairs()), ("school_lists", lists()), ("school_labels", labels())):
        file = FOLDER / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"{len(rows)} rows, {file.stat().st_size / 1000:.0f} kB, in {file}")


if __name__ == "__main__":
    main()
