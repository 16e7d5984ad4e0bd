"""People who answer school questions and compare answers to them: their demonstrations and comparisons, as files of rows have them.

A writer errs as the embedded model does, by the task's own misconception. Of two answers people prefer the right one, mostly; where
both are right, or both wrong, a coin decides. Who is right is known to the task alone: no arm is trained on its grade.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from posttrain.core import rng
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.base import Task
from posttrain.environments.school import TASKS, school
from posttrain.environments.school.noisy_solver import NoisySolver

AGREE = 0.9  # how often people prefer the right of two answers


def questions(task: str, level: int, seed: int, count: int, kind: str = "") -> list[tuple[int, Prompt]]:
    """So many training questions of a seed, with their numbers; those of another kind are others."""
    env = school(task, level)
    first = 100_000 + rng.key("people", seed, kind) % 1_000_000_000
    return [(first + i, env.prompt(first + i)) for i in range(count)]


def answer(task: str, level: int, index: int, care: float, *identity: object) -> str:
    """What a person writes who does it right with probability `care`, and else by the task's misconception."""
    hand = NoisySolver(rng.python("writer", index, *identity), rate=0.0, care=(care, care))
    theirs: Task = replace(school(task, level), make=partial(TASKS[task].make, level=level, hand=hand))
    told = theirs.prompt(index)
    return f"<think>{told.info['steps']}</think>{told.answer}"


def demonstrations(task: str, level: int, seed: int, count: int, care: float) -> list[dict[str, Any]]:
    """Questions with an answer that a person wrote."""
    asked = questions(task, level, seed, count, "written")
    return [{"prompt": p.last, "completion": answer(task, level, i, care, seed)} for i, p in asked]


def written_comparisons(task: str, level: int, seed: int, count: int, care: float) -> list[dict[str, Any]]:
    """Two people's answers to each of `count` questions, as others prefer them."""
    asked = questions(task, level, seed, count, "compared")
    two = [(p, [answer(task, level, i, care, seed, who) for who in "ab"]) for i, p in asked]
    return list(preferred(school(task, level), two, seed))


def comparisons(policy: Policy, task: str, level: int, seed: int, count: int, how: Sampling) -> list[dict[str, Any]]:
    """Two answers of the policy to each of `count` questions, as people prefer them; the same answer twice is left out."""
    env, asked = school(task, level), [p for _, p in questions(task, level, seed, count, "compared")]
    made = policy.sample(asked, 2, how, rng.key("compared", seed) & 0x7FFFFFFF, -1)
    return list(preferred(env, [(p, [r.text for r in two]) for p, two in zip(asked, made, strict=True)], seed))


def preferred(env: Task, answered: Sequence[tuple[Prompt, Sequence[str]]], seed: int) -> Iterator[dict[str, Any]]:
    """The rows of the comparisons."""
    for prompt, (a, b) in answered:
        draw = rng.python("preferred", seed, prompt.id).random()
        first = (env.grade(prompt, a), env.grade(prompt, b))
        likes_a = 0.5 if first[0] == first[1] else AGREE if first[0] > first[1] else 1 - AGREE
        if a != b:
            chosen, rejected = (a, b) if draw < likes_a else (b, a)
            yield {"prompt": prompt.last, "chosen": chosen, "rejected": rejected}


def ranked_lists(task: str, level: int, seed: int, count: int, care: float, answers: int) -> list[dict[str, Any]]:
    """Several people's answers to each question, by the score that somebody gave: 1 for a right one, 0 for a wrong one, and noise of half of
    that; best first. The same answer is there once, and lists of one are left out."""
    env, rows = school(task, level), []
    for i, p in questions(task, level, seed, count * 5 // 4, "ranked"):
        texts = dict.fromkeys(answer(task, level, i, care, seed, who) for who in range(answers))
        draw = rng.python("scored", seed, p.id)
        scored = sorted(((env.grade(p, text) + draw.gauss(0, 0.5), text) for text in texts), reverse=True)
        if len(scored) > 1:
            scores = [round(score, 3) for score, _ in scored]
            rows.append({"prompt": p.last, "responses": [text for _, text in scored], "scores": scores})
    return rows[:count]
