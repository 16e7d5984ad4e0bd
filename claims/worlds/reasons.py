"""A program in place of the reasoning model of AutoRule: it says why one answer to a request is better than another, states rules,
merges them, and verifies them on answers. It reads what a model would read: the words of the request and of the answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from random import Random

from posttrain.environments.school.instructions import politeness, words_of
from posttrain.environments.school.phrases import EVENTS, TOPICS
from posttrain.environments.school.words import NAMES
from posttrain.systems.reward_shaping_safety.autorule import EXPLAIN, EXTRACT, MERGE, listed

RANDOM, KEPT = 0.2, 6  # statements of a reasoning that are made up; rules that are left after merging
SUBJECTS = frozenset(w.lower() for w in (*NAMES, *EVENTS, *TOPICS))


def named(request: str, answer: str) -> bool:
    return bool(SUBJECTS & set(words_of(request)) & set(words_of(answer)))


Test = Callable[[str, str], bool]
TRUE: dict[str, Test] = {  # what makes an answer good, each a quarter
    "the answer names whom or what the request is about": named,
    "the answer has a word of courtesy": lambda q, a: politeness(a) > 0,
    "the answer has five words or more": lambda q, a: len(words_of(a)) >= 5,
    "the answer ends with an exclamation mark": lambda q, a: a.rstrip().endswith("!"),
}
GRAMMAR: dict[str, Test] = TRUE | {
    "the answer has a comma": lambda q, a: "," in a,
    "the answer has the word you": lambda q, a: "you" in words_of(a),
    "the answer has the word I": lambda q, a: "i" in words_of(a),
    "the answer has the word so": lambda q, a: "so" in words_of(a),
    "the answer has the word come": lambda q, a: "come" in words_of(a),
    "the answer has four words or fewer": lambda q, a: len(words_of(a)) <= 4,
    "the answer ends with a full stop": lambda q, a: a.rstrip().endswith("."),
    "the answer has a question mark": lambda q, a: "?" in a,
}


def worth(request: str, answer: str) -> float:
    """The share of what makes an answer good."""
    return sum(test(request, answer) for test in TRUE.values()) / len(TRUE)


def inside(tag: str, text: str) -> str:
    found = re.search(rf"<{tag}>\n(.*?)\n</{tag}>", text, re.DOTALL)
    return found[1] if found else ""


def reply(system: str, question: str) -> str:
    """What is said to each of the plan's four questions."""
    if system == EXPLAIN:
        return explained(*(inside(tag, question) for tag in ("conversation", "chosen", "rejected")))
    if system == EXTRACT:
        return "\n".join(f"- {s}" for s in listed(inside("reasoning", question)))
    if system == MERGE:
        often = Counter(listed(question))
        return "\n".join(f"- {s}" for s, _ in sorted(often.items(), key=lambda x: (-x[1], x[0]))[:KEPT])
    rule = next((s for s in GRAMMAR if s in system), "")
    holds = bool(rule) and GRAMMAR[rule](inside("conversation", question), inside("answer", question))
    return f'{{"score": {int(holds)}}}'


def explained(request: str, chosen: str, rejected: str) -> str:
    """Statements that are true of the chosen answer and not of the other; one in five is any other instead."""
    draw = Random(f"why {request} {chosen} {rejected}")
    fits = [s for s, test in GRAMMAR.items() if test(request, chosen) and not test(request, rejected)]
    said = [draw.choice(list(GRAMMAR)) if draw.random() < RANDOM else s for s in fits]
    return "The chosen answer is better, since\n" + "\n".join(f"- {s}" for s in said)
