"""A doctor's consultation: ask the patient, who answers yes or no, then give the diagnosis and its advice.

The illnesses are invented, and this is no medicine. Level 1: six illnesses, level 2: eight, level 3: eight with the fewest questions that
suffice. Diagnosis and advice earn a half each; `Rollout.info` counts questions, repeated ones and those that were not understood. Habits: a
diagnosis at once, by the complaint alone; the same question again and again.
"""

from __future__ import annotations

import re
from random import Random

from posttrain.core.answers import final_answer, plain
from posttrain.core.types import Prompt
from posttrain.environments.base import Problem
from posttrain.environments.school.words import NAMES
from posttrain.environments.workshop import scene
from posttrain.environments.workshop.scene import Expert, Reply, worded

DEFAULT_LEVEL = 2
HABITS = {"hasty": 4.0, "repeat": 1.0}
ILLNESSES: dict[str, tuple[frozenset[str], str]] = {
    name: (frozenset(signs.split()), advice)
    for name, signs, advice in (
        ("marsh fever", "fever cough chills", "rest"),
        ("glass cough", "cough rash thirst", "tea"),
        ("moon rash", "rash fever thirst", "salve"),
        ("stone head", "headache chills thirst", "sleep"),
        ("red throat", "fever headache rash", "honey"),
        ("long cold", "cough headache chills", "soup"),
        ("salt fever", "fever chills thirst", "water"),
        ("grey cough", "cough fever headache", "steam"),
    )
}
SIGNS = sorted({s for signs, _ in ILLNESSES.values() for s in signs})
_ASK = re.compile(r"do you have (?:a |the )?(\w+)\?", re.IGNORECASE)
_DIAGNOSIS = re.compile(r"diagnosis: ([\w ]+)\.\s*advice: ([\w ]+)", re.IGNORECASE)


def known(level: int) -> list[str]:
    """The illnesses of a level."""
    return list(ILLNESSES)[: 6 if level == 1 else None]


def next_question(left: list[str], asked: set[str]) -> str:
    """The sign that divides those left most evenly; the first of equals."""
    having = {s: sum(s in ILLNESSES[i][0] for i in left) for s in SIGNS if s not in asked}
    return min(having, key=lambda s: (abs(2 * having[s] - len(left)), s))


def questions(illness: str, complaint: str, level: int) -> list[str]:
    """What the right way asks, until one illness is left."""
    left, asked = [i for i in known(level) if complaint in ILLNESSES[i][0]], [complaint]
    while len(left) > 1:
        asked.append(next_question(left, set(asked)))
        left = [i for i in left if (asked[-1] in ILLNESSES[i][0]) == (asked[-1] in ILLNESSES[illness][0])]
    return asked[1:]


def make(rng: Random, level: int) -> Problem:
    """A patient with a complaint; how often one may ask depends on the level."""
    illness = rng.choice(known(level))
    complaint = rng.choice(sorted(ILLNESSES[illness][0]))
    budget = max(len(questions(i, complaint, level)) for i in known(level) if complaint in ILLNESSES[i][0])
    budget += level < 3
    name, age = rng.choice(NAMES), rng.randint(8, 90)
    question = f"You are the doctor. Ask at most {budget} questions, then say: Diagnosis: ... Advice: ..."
    wording, text = worded(rng, f"{question} Patient: I am {name}, {age}, and I have {complaint}.")
    info = {"illness": illness, "complaint": complaint, "level": level, "budget": budget, "wording": wording}
    answer = f"Diagnosis: {illness}. Advice: {ILLNESSES[illness][1]}."
    return Problem(text, answer, info=info, identity=f"{name} {age} {illness} {complaint}")


class Scene(scene.Scene):
    """The patient: answers what it is asked, until the time is up."""

    def __init__(self, prompt: Prompt) -> None:
        super().__init__(prompt)
        self.asked: list[str] = []
        self.told = {"questions": 0, "repeated": 0, "not_understood": 0}
        self.over = False

    def reply(self, text: str) -> Reply:
        said = final_answer(text) or ""
        if found := _DIAGNOSIS.search(said):
            signs = self.info["illness"]
            right = plain(found[1]) == signs
            self.told["diagnosis"] = float(right)
            return Reply(None, 0.5 * right + 0.5 * (plain(found[2]) == ILLNESSES[signs][1]))
        if self.over:
            return Reply(None, stop="max_turns")
        self.told["questions"] += 1
        if self.told["questions"] >= self.info["budget"]:
            self.over = True
        return Reply(self.answer(said) + (" My time is up. What is it?" if self.over else ""))

    def answer(self, said: str) -> str:
        found = _ASK.search(said)
        sign = found[1].lower() if found else ""
        if sign not in SIGNS:
            self.told["not_understood"] += 1
            return "Sorry, I do not understand."
        self.told["repeated"] += sign in self.asked or sign == self.info["complaint"]
        self.asked.append(sign)
        return "Yes." if sign in ILLNESSES[self.info["illness"]][0] else "No."


def expert(prompt: Prompt, habit: str, rng: Random) -> Expert:
    info = prompt.info
    level, complaint = info["level"], info["complaint"]
    if not habit:
        for sign in questions(info["illness"], complaint, level):
            yield f"Do you have {sign}?"
        yield str(prompt.answer)
        return
    if habit == "repeat":
        sign = rng.choice([s for s in SIGNS if s != complaint])
        for _ in range(info["budget"]):
            yield f"Do you have {sign}?"
    guess = next(i for i in known(level) if complaint in ILLNESSES[i][0])
    yield f"Diagnosis: {guess}. Advice: {ILLNESSES[guess][1]}."
