"""DSTC: a code model learns from its own programs and its own tests: which passes which says which pair of them is preferred."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import find_method
from posttrain.core.plan import Context, Do, Gate, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import ENDLESS, epochs_of
from posttrain.methods.settings import asked_task, written
from posttrain.rewards.rules.code import box_of, program_of
from posttrain.sandbox.grade import grade
from posttrain.sandbox.row_tests import Script, Tests
from posttrain.sandbox.types import Limits, Program, Sandbox

PAPER = "arXiv:2411.13611"
ASK = "\n\nDo not solve this. Write assert statements that check a solution, in one code block and nothing else."
EACH = 5  # programs and tests of one problem
LIMITS = Limits(seconds=6.0, cpu=6.0)
CHOICES = ("minimax", "random")
Cell = tuple[int, int]  # a program and a test

# ---- which passes which


def passes(box: Sandbox, programs: Sequence[str], tests: Sequence[str]) -> list[list[bool]]:
    """passed[i][j]: program i passes test j, all of its assertions; a test that does not run is passed by nobody."""
    return [[_passes(box, program, test) for test in tests] for program in programs]


def _passes(box: Sandbox, program: str, test: str) -> bool:
    if not program or "assert" not in test:
        return False
    try:
        found = grade(box, Program("python", program), Tests([Script(test)]), LIMITS)
    except ValueError:  # the test itself is broken
        return False
    return found.passed == found.total


def minimax(passed: Sequence[Sequence[bool]]) -> tuple[Cell, Cell] | None:
    """(chosen, rejected), each a program with a test; None where nothing passes or nothing fails.

    row_i = tests that program i passes;  column_j = programs that pass test j
    chosen: of the cells that pass, the one of the program with the most tests, then of the test with the most programs
    rejected: of the cells that fail, the one of the test with the most programs, so that it is likely right, then of the program with the fewest
    tests. Of equals the first.
    """
    rows, columns = [sum(row) for row in passed], [sum(column) for column in zip(*passed, strict=True)]
    cells = [(i, j) for i in range(len(rows)) for j in range(len(columns))]
    good = [c for c in cells if passed[c[0]][c[1]]]
    bad = [c for c in cells if not passed[c[0]][c[1]]]
    if not good or not bad:
        return None
    return max(good, key=lambda c: (rows[c[0]], columns[c[1]])), max(bad, key=lambda c: (columns[c[1]], -rows[c[0]]))


def drawn(passed: Sequence[Sequence[bool]], *identity: object) -> tuple[Cell, Cell] | None:
    """A cell that passes and one that fails, by lot: what minimax is compared with."""
    cells = [(i, j) for i in range(len(passed)) for j in range(len(passed[0]))]
    good = [c for c in cells if passed[c[0]][c[1]]]
    bad = [c for c in cells if not passed[c[0]][c[1]]]
    draw = rng.python("dstc", *identity)
    return (draw.choice(good), draw.choice(bad)) if good and bad else None


# ---- the plan


@plan(paper=PAPER, title="DSTC", uses=("task", "answers"))
def dstc(
    method: str = "dpo", epochs: float = 1, choice: str = "minimax", concatenated: bool = True, problems: int = 0, allow_unsafe_code: bool = False
) -> Plan:  # fmt: skip
    """DSTC: J programs and J tests of the model itself to each problem, all run against all; a program with a test that it passes is preferred to one with a test
    that it fails.

    chosen: the program that passes most tests, with the test that most programs pass; rejected: the test that most programs pass, with the
    program that fails it and passes fewest; both as one answer, program and test, so that the label is true even where the test is wrong
    J: 5 (--num-generations). method: dpo, or another that learns from pairs, or from good and bad answers (kto). epochs: passes over the pairs. choice:
    minimax or random (a cell that passes, one that fails). concatenated=False learns programs alone. problems: the first so many of --task; 0: all.
    No gold answer, no given test and no reward is read. Programs run in a sandbox; without one the plan is refused with what to type.
    The summary has how many problems gave a pair, and the share of cells that pass.

    Departures: no code was published, and the paper's text was not read in full: the order within minimax and its ties, J, and the prompts are
    this package's. Pairs whose two programs are the same text are left out. The policy answers with program and test once it is trained on both; a reward that
    runs the last code block sees the program only where both are in one block, so program and test are written as one. The paper's models are
    StarCoder2-15B and DeepSeekCoder-33B; its rates could not be checked.
    """
    if epochs <= 0 or problems < 0:
        raise UserError(f"got epochs={epochs}, problems={problems}; epochs is above 0, problems 0 or more")
    if choice not in CHOICES:
        raise unknown("way to choose pairs (choice)", choice, CHOICES)
    base = find_method(method)
    kind = base.rollout.card.data
    if base.scores or kind not in ("pairs", "labels"):
        raise UserError(
            f"dstc learns from pairs of answers, or from good and bad ones: dpo, ipo, kto; not by {base.name}"
        )

    def ready(context: Context) -> None:
        env = asked_task(context)
        if env.opens:
            raise UserError(f"dstc asks for single programs, and {env.name} has turns; give a file of problems")
        box_of(os.getpid(), allow_unsafe_code)

    def collect(context: Context) -> None:
        c, env, policy = context.config, asked_task(context), context.role("policy")
        most = size_of(env, "train") or ENDLESS
        prompts: list[Prompt] = [env.prompt(i) for i in range(min(problems or most, most))]
        seed, n = rng.key(c.seed, "dstc") & 0x7FFFFFFF, c.num_generations or EACH
        written_programs = policy.sample(prompts, n, c.sampling, seed, 0)
        written_tests = policy.sample([asked_for_tests(p) for p in prompts], n, c.sampling, seed, 1)
        rows, share = [], []
        for at, (p, one, two) in enumerate(zip(prompts, written_programs, written_tests, strict=True)):
            programs, tests = ([program_of(p, r.text) for r in some] for some in (one, two))
            passed = passes(box_of(os.getpid(), allow_unsafe_code), programs, tests)
            share.append(sum(map(sum, passed)) / (len(programs) * len(tests)))
            found = minimax(passed) if choice == "minimax" else drawn(passed, c.seed, p.id)
            if found and programs[found[0][0]].strip() != programs[found[1][0]].strip():
                pair = [answer(programs[i], tests[j] if concatenated else "") for i, j in found]
                rows.append({"question": at, "chosen": pair[0], "rejected": pair[1]})
        context.run.write_artifact("pairs", rows)
        context.notes |= {"pairs": len(rows), "problems": len(prompts), "passed": sum(share) / max(len(share), 1)}

    def pairs(context: Context) -> Listed:
        env = asked_task(context)
        made = []
        for row in context.run.read_artifact("pairs"):
            p = env.prompt(row["question"])
            both = {k: row[k] for k in ("chosen", "rejected")}
            if kind == "pairs":
                made.append(replace(p, info=p.info | both))
                continue
            for name, text in both.items():
                told = p.info | {"response": text, "label": name == "chosen"}
                made.append(replace(p, id=f"{p.id}/{name}", info=told))
        return Listed(env.name, tuple(made))

    def some(context: Context) -> bool:
        return bool(context.notes.get("pairs"))

    told = "no problem gave a program that passes a test and one that fails, so there is nothing to learn from; more answers: --num-generations 16"
    learn = Phase(base.name, base, epochs_of(pairs, epochs), pairs, rewards=written)
    return Plan((Do("collect", collect), Gate("pairs", some, told), learn), ready=ready)


def asked_for_tests(prompt: Prompt) -> Prompt:
    """The problem, asking for tests of a solution in place of one."""
    *before, last = prompt.content
    said: Any = last["content"]
    text = said + ASK if isinstance(said, str) else [*said, {"type": "text", "text": ASK}]
    return replace(prompt, id=f"{prompt.id}/tests", content=(*before, last | {"content": text}))


def answer(program: str, test: str) -> str:
    """A program and a test as one answer."""
    return "\n".join(["```python", program.strip(), *(["", test.strip()] if test else []), "```"])
