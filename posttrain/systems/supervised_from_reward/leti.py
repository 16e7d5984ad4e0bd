"""LeTI: a model learns from what is said of its own answers: error messages stand before the problem and the program, and all of it is learned as text."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.protocols import Environment, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.turn import Observation
from posttrain.core.types import Group, Origin, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.environments.mapped import Mapped
from posttrain.environments.rows import Bad, read_rows
from posttrain.evals.accuracy import accuracy, held_out
from posttrain.methods.from_pairs import ENDLESS, epochs_of, has_reward
from posttrain.methods.settings import asked_rewards, asked_scores, asked_task, written
from posttrain.methods.sft import sft
from posttrain.rewards.rules.code import box_of, program_of
from posttrain.rewards.scorers.spec import build_scorer, function_of
from posttrain.sandbox.grade import grade
from posttrain.sandbox.row_tests import has_tests, read_tests
from posttrain.sandbox.types import Limits, Program

PAPER = "arXiv:2305.10314"
GOOD, BAD, BEGIN, END = "<|good|>", "<|bad|>", "<|lang_feedback|>", "<|/lang_feedback|>"
ANSWERS, LONGEST, RIGHT = (
    16,
    800,
    1.0,
)  # to each problem in a round; letters of feedback; what an answer that is good earns
LIMITS = Limits(seconds=6.0, cpu=6.0)
Say = Callable[[Prompt, str], str]

# ---- what stands before a problem


def conditioned(prompt: Prompt, good: bool, feedback: str = "") -> Prompt:
    """The prompt with the reward token, and what was said of the answer, before the first message of the user."""
    head = (GOOD if good else BAD) + (f"{BEGIN}{feedback}{END}" if feedback else "")
    first = next(i for i, m in enumerate(prompt.content) if m["role"] == "user")
    message = dict(prompt.content[first])
    said = message["content"]
    message["content"] = head + said if isinstance(said, str) else [{"type": "text", "text": head}, *said]
    return replace(prompt, content=(*prompt.content[:first], message, *prompt.content[first + 1 :]))


def executed(allow_unsafe_code: bool) -> Say:
    """What the tests of a row say of a program, in a sandbox: the first error, or what a call returned that it should not have; of one that
    does not even begin, what the interpreter says."""

    def say(prompt: Prompt, text: str) -> str:
        tests = read_tests(prompt.info)
        source = program_of(prompt, text, tests.entry)
        if not source:
            return "there is no program in the answer"
        box, program = box_of(os.getpid(), allow_unsafe_code), Program("python", source)
        why = grade(box, program, tests, LIMITS).why
        return (box.run(program, LIMITS).stderr.strip() or why) if why.startswith("it ended") else why

    return say


# ---- the text that is learned


@rollout(title="Whole texts", data="logs", base="logged")
def whole_texts(ask: RolloutRequest) -> list[Group]:
    """Whole texts: the prompt and its answer (`info["answers"]`) as one text of which every token is learned; beside it one of a corpus (`info["corpus"]`).

    The first token is read and not learned: nothing comes before it. Longer than the model's window: the rest is left out.
    """
    groups, window = [], int(getattr(ask.policy, "window", 0))
    for p in ask.prompts:
        texts = [torch.cat([ask.policy.observe(p).tokens, torch.tensor(a["tokens"])]) for a in p.info["answers"]]
        for raw in p.info.get("corpus", ()):
            ids: list[int] = ask.policy.tokenizer(raw, add_special_tokens=False)["input_ids"]  # type: ignore[attr-defined]
            texts += [torch.tensor(ids)] if len(ids) > 1 else []
        groups.append(Group(p, [_learned(p, ids[: window or None], i) for i, ids in enumerate(texts)]))
    return groups


def _learned(prompt: Prompt, ids: torch.Tensor, index: int) -> Rollout:
    return Rollout.single(
        prompt, Observation(ids[:1]), ids[1:], torch.zeros(len(ids) - 1), reward=1.0, origin=Origin.WRITTEN, index=index
    )


@dataclass(frozen=True)
class Told(Listed):
    """Texts to learn, and the held-out problems of a task with the token of a good answer before them."""

    env: Environment | None = None

    @property
    def graded(self) -> bool:
        return self.env is not None and self.env.graded

    def grade(self, prompt: Prompt, text: str) -> float:
        assert self.env is not None
        return float(self.env.grade(prompt, text))


def corpus_of(file: str) -> list[str]:
    """The texts of a corpus: rows with text or content."""
    if file == "none":
        return []
    if not file:
        raise UserError(
            "leti holds the model near its pre-training by one text of a corpus beside every sample; name a file with a column text: --plan.corpus "
            "FILE.jsonl, or go without: --plan.corpus none"
        )
    texts = [row.get("text") or row.get("content") for _, row in read_rows(file) if not isinstance(row, Bad)]
    found = [t for t in texts if isinstance(t, str) and t.strip()]
    if not found:
        raise UserError(f"{file} has no texts; a corpus has rows with a column text (or content)")
    return found


# ---- the plan


@plan(paper=PAPER, title="LeTI", uses=("task", "reward", "answers"))
def leti(
    rounds: int = 5, epochs: float = 3, feedback: str = "", corpus: str = "", allow_unsafe_code: bool = False
) -> Plan:
    """LeTI: sample programs, run them, and learn "verdict, error message, problem, program" as text; then ask for what a good verdict stands before.

    <|good|> problem program   or   <|bad|><|lang_feedback|> error message <|/lang_feedback|> problem program;  L = -log p of every token
    Each round: 16 answers (--num-generations) to every problem of --task, behind <|good|> from the second round on; all of them are learned, good and
    bad, for `epochs` passes. The policy is measured, and is to be used, with <|good|> before the question; the summary has it with <|bad|>
    and without either, too. Good: the task's own grade or --reward gives 1; rows with tests are run (--reward code) in a sandbox.
    feedback: what is said of a bad answer: by default the first error of the row's tests; mine.py:say, say(prompt, text) -> str, for tasks
    without; none: the verdict alone. corpus: a file of texts, one of which is learned beside every sample; none: without.

    Departures: the authors sample 128 programs to a problem at temperature 1 (here 16, their smallest study; `--num-generations 128`) for 10 rounds
    of 3 epochs at 5e-6 (2B; 50 rounds at 1e-5 for 350M), here 5 rounds. Their four marks are new tokens of the vocabulary; here they are text, so a model
    must be able to write them. Where the model has a chat template, verdict and feedback begin the user's message and the template's own tokens are
    learned as well. The error is the first failing test's kind and message without its stack
    trace (which is there where a program does not begin at all), cut at 800 letters. They alternate a batch
    of samples with one of the corpus; here both are in every batch. Their corpus is 50,000 programs of The Stack. That feedback comes first, that it is
    left out where the answer is good, the order of rounds and the loss on all tokens are theirs.
    """
    if rounds < 1 or epochs <= 0:
        raise UserError(f"got rounds={rounds}, epochs={epochs}; it takes 1 round at least, and epochs above 0")

    def payer(context: Context) -> Any:
        env = asked_task(context)
        if has_reward(context) or env.graded or not has_tests(env.prompt(0).info):
            return asked_rewards(context)
        if "code" not in context.made:
            context.made["code"] = build_scorer(f"code(allow_unsafe_code={allow_unsafe_code})", env)
        return context.made["code"]

    def said(context: Context) -> Say | None:
        """What is said of a bad answer; None: nothing."""
        if feedback == "none":
            return None
        if feedback:
            file, _, name = feedback.rpartition(":")
            found: Say = function_of(file, name)
            return found
        env = asked_task(context)
        if not has_tests(env.prompt(0).info):
            raise UserError(
                f"leti learns from what is said of answers, and the rows of {env.name} have no tests to run; give a function that says what is "
                "wrong: --plan.feedback mine.py:say with def say(prompt, text) -> str, or learn from the verdict alone: --plan.feedback none"
            )
        box_of(os.getpid(), allow_unsafe_code)
        return executed(allow_unsafe_code)

    def unread(context: Context) -> dict[str, str]:
        """Nothing is run where somebody else grades the answers and says what is wrong."""
        runs = has_tests(asked_task(context).prompt(0).info)
        if feedback and (has_reward(context) or asked_task(context).graded or not runs):
            return {"allow_unsafe_code": "no program is run here"}
        return {}

    def ready(context: Context) -> None:
        env = asked_task(context)
        if env.opens:
            raise UserError(f"leti learns single answers, and {env.name} has turns of its own; give a task without")
        corpus_of(corpus)
        said(context)
        payer(context)

    def collect(context: Context) -> None:
        """Answers of the policy as it is, with the verdict and what is said of the bad ones."""
        c, env, number = context.config, asked_task(context), round_of(context)
        plain = [env.prompt(i) for i in range(size_of(env, "train") or ENDLESS)]
        asked = [conditioned(p, True) for p in plain] if number > 1 else plain
        seed = rng.key(c.seed, "leti", number) & 0x7FFFFFFF
        made = context.role("policy").sample(asked, c.num_generations or ANSWERS, c.sampling, seed)
        groups = [Group(p, some) for p, some in zip(plain, made, strict=True)]
        asked_scores(context, groups, payer(context))
        say, rows = said(context), list[dict[str, Any]]()
        for at, g in enumerate(groups):
            for r in (r for r in g.scored if len(r)):
                good = r.total >= RIGHT
                why = "" if good or say is None else str(say(g.prompt, r.text) or "")[:LONGEST]
                own = {"tokens": r.actions.tolist(), "text": r.text}
                rows.append({"question": at, "good": good, "feedback": why, "answers": [own]})
        if not rows:
            raise UserError(f"round {number}: none of the answers to {len(plain)} problems could be graded")
        context.run.write_artifact(f"rows-{number}", rows)
        figures = {"answers": len(rows), "good": sum(row["good"] for row in rows) / len(rows)}
        context.notes["collected"] = [*context.notes.get("collected", [])[: number - 1], figures]

    def texts(context: Context) -> Told:
        """The present round's texts; none before the first."""
        env, c = asked_task(context), context.config
        test = tuple(conditioned(p, True) for p in held_out(env, c.eval_problems, "test")) if c.eval_problems else ()
        known = len(context.notes.get("collected", ()))
        number = min(known, round_of(context)) if context.phase.startswith("learn.") else known
        rows = context.run.read_artifact(f"rows-{number}") if number else []
        beside = corpus_of(corpus)
        made = []
        for i, row in enumerate(rows):
            p = conditioned(env.prompt(row["question"]), row["good"], row["feedback"])
            mixed = [beside[rng.key("corpus", number, i) % len(beside)]] if beside else []
            made.append(replace(p, id=f"{p.id}/{number}-{i}", info={"answers": row["answers"], "corpus": mixed}))
        return Told(env.name, tuple(made), test, env=env)

    def look(label: str, heads: Sequence[str]) -> Do:
        """Accuracy behind each verdict, and behind none."""
        change: dict[str, Callable[[Prompt], Prompt]] = {
            "good": lambda p: conditioned(p, True), "bad": lambda p: conditioned(p, False), "neither": lambda p: p,
        }  # fmt: skip

        def work(context: Context) -> None:
            env, c = asked_task(context), context.config
            for head in heads if c.eval_problems and env.graded else ():
                asked = Mapped(env, lambda p, split, how=change[head]: how(p))  # type: ignore[misc]
                found = accuracy(context.role("policy"), asked, c.eval_problems, c.sampling)
                context.notes.setdefault(label, {})[head] = found.accuracy

        return Do(label.replace("_", "-"), work)

    method = sft.but(name="leti", title="LeTI", paper=PAPER, doc=__doc__, rollout=whole_texts)
    learn = Phase("learn", method, epochs_of(texts, epochs), texts, rewards=written, measured=True)
    return Plan(
        (look("accuracy_before_by_verdict", ("neither",)), Cycle((Do("collect", collect), learn), rounds), look("accuracy_by_verdict", ("good", "bad", "neither"))),
        ready=ready, idle=unread,
    )  # fmt: skip
