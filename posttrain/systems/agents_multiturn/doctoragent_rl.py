"""DoctorAgent-RL: a doctor that learns to ask, turn by turn, under a budget of questions, and to decide in time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment, Episode, Limits, Policy, Step
from posttrain.core.sampling import Sampling
from posttrain.core.squad import normal, word_f1
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.losses.policy.ppo import ppo as clipped
from posttrain.losses.regularisers.entropy import entropy
from posttrain.methods.from_pairs import demonstrations, imitation
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task, written
from posttrain.policies.load import load_model
from posttrain.rollouts.asked import Asked
from posttrain.rollouts.sample import sample

ASK = (
    "You are a doctor. Find out what the patient has, asking one question at a time: <question> ... </question>. Reason first inside <think> and "
    "</think>. When you know enough, end with <diagnosis> ... </diagnosis><recommendation> ... </recommendation>. You have {budget} turns in "
    "all, the last for the diagnosis at the latest.\nPatient: {question}"
)
REPEATED, UNKNOWN = "Sorry, you've asked this question before.", "Sorry, I cannot answer your question."
INVALID = "Write <question> ... </question>, or <diagnosis> ... </diagnosis><recommendation> ... </recommendation>."
TOLD, CANNOT, AGAIN, MALFORMED, EXHAUSTED, BEST = 1.0, -1.0, -2.0, -2.0, -5.0, 5.0
_SMALL = (
    "do does did you your have has had is are was were any of in on to it that what when how with for and or me my i"
)

# ---- what turns are worth


def worth_of(reply: str) -> float:
    """What a question earned, by the patient's reply: +1 for something new, -1 where it could not be answered, -2 where it was asked before."""
    return AGAIN if reply == REPEATED else CANNOT if "Sorry" in reply else TOLD


def decision(text: str) -> tuple[str, str] | None:
    """The diagnosis and the recommendation of a turn; None where it gives no diagnosis."""
    found = [re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("diagnosis", "recommendation")]
    return (found[0][1].strip(), found[1][1].strip() if found[1] else "") if found[0] else None


def closeness(prompt: Prompt, said: tuple[str, str]) -> float:
    """5 F1 of the diagnosis' words with the case's, and 5 F1 of the recommendation's where the case has one."""
    gold = case_of(prompt)
    return BEST * sum(word_f1(mine, [theirs]) for mine, theirs in zip(said, gold, strict=True) if theirs)


def case_of(prompt: Prompt) -> tuple[str, str]:
    """The diagnosis (column diagnosis, or the answer) and the recommendation of a case."""
    diagnosis = prompt.info.get("diagnosis") or prompt.answer
    if not diagnosis:
        raise UserError(f"the case {prompt.id} has no diagnosis; give a column diagnosis (and recommendation)")
    return str(diagnosis), str(prompt.info.get("recommendation") or "")


# ---- the patient


class Patient(Protocol):
    """Answers a doctor's question from a case, and says "Sorry" where it cannot."""

    async def reply(self, prompt: Prompt, question: str, before: Sequence[str], key: int) -> str: ...
    async def grade(self, prompt: Prompt, said: tuple[str, str], key: int) -> float: ...


def facts_of(prompt: Prompt) -> list[str]:
    """What a case knows: the column facts (a list of sentences, or of question and answer), or the sentences of the column case."""
    facts = prompt.info.get("facts") or re.split(r"(?<=[.!?])\s+", str(prompt.info.get("case") or ""))
    said = [f"{f.get('question', '')} {f.get('answer', '')}" if isinstance(f, dict) else str(f) for f in facts]
    return [f.strip() for f in said if f.strip()]


def words(text: str) -> set[str]:
    """Its words that carry meaning, without their endings."""
    return {re.sub(r"(?:ing|ed|es|s|e)$", "", w) or w for w in normal(text).split() if w not in _SMALL.split()}


class Scripted:
    """A patient without a model: the fact of the case that shares most words with the question, once."""

    async def reply(self, prompt: Prompt, question: str, before: Sequence[str], key: int) -> str:
        best, asked = self.fact(prompt, question), words(question)
        if any(words(old) == asked or (best and self.fact(prompt, old) == best) for old in before):
            return REPEATED
        return best or UNKNOWN

    def fact(self, prompt: Prompt, question: str) -> str:
        shared = [(len(words(fact) & words(question)), -i, fact) for i, fact in enumerate(facts_of(prompt))]
        most = max(shared, default=(0, 0, ""))
        return most[2] if most[0] else ""

    async def grade(self, prompt: Prompt, said: tuple[str, str], key: int) -> float:
        return closeness(prompt, said)


class Played:
    """A patient that a frozen model plays: it is asked whether a question came before, then for its answer; with `grades`, for points."""

    def __init__(self, policy: Policy, grades: bool = False) -> None:
        self.asked, self.grades = Asked(policy, Sampling(max_tokens=64, temperature=0.7)), grades

    async def reply(self, prompt: Prompt, question: str, before: Sequence[str], key: int) -> str:
        if before:
            text = f"Questions so far:\n{chr(10).join(before)}\nNew question: {question}\nWas it asked before, in any words? Answer yes or no."
            if normal(await self.asked.ask(Prompt.text(f"again-{key}", text))).startswith("yes"):
                return REPEATED
        told = f'You are a patient. Answer in one sentence, from this alone: {" ".join(facts_of(prompt))}\nIf it does not say, write: "{UNKNOWN}"'
        return (await self.asked.ask(Prompt.text(f"reply-{key}", f"{told}\nDoctor: {question}"))).strip() or UNKNOWN

    async def grade(self, prompt: Prompt, said: tuple[str, str], key: int) -> float:
        if not self.grades:
            return closeness(prompt, said)
        total = 0.0
        for what, mine, gold in zip(("diagnosis", "recommendation"), said, case_of(prompt), strict=True):
            text = f"The right {what}: {gold}\nThe doctor's {what}: {mine}\nHow well do they agree, from 0 to 5? Answer with a number."
            found = (
                re.search(r"[0-5](?:\.\d+)?", await self.asked.ask(Prompt.text(f"{what}-{key}", text)))
                if gold
                else None
            )
            total += min(float(found[0]), BEST) if found else 0.0
        return total


# ---- the consultation


class Consulting(Environment):
    """Cases as consultations: the question of a row is what the patient says first; `budget` (least, most) turns are drawn for each prompt."""

    def __init__(self, env: Environment, patient: Patient, budget: tuple[int, int] = (2, 10)) -> None:
        self.env, self.patient, self.budget, self.name = env, patient, budget, env.name
        self.limits = Limits(turns=budget[1])

    def size(self, split: str) -> int:
        return size_of(self.env, split)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        p = self.env.prompt(index, split)
        turns = rng.python("budget", self.name, split, index).randint(*self.budget)
        text = ASK.replace("{budget}", str(turns)).replace("{question}", p.last)
        return replace(
            p, id=f"{p.id}/{turns}", content=({"role": "user", "content": text},), info={**p.info, "budget": turns}
        )

    def open(self, prompt: Prompt, key: int) -> Consultation:
        return Consultation(self, prompt, key)


@dataclass
class Consultation(Episode):
    """One consultation; a turn's reward is what its question, or its decision, is worth."""

    env: Consulting
    prompt: Prompt
    key: int
    asked: list[str] = field(default_factory=list)
    turns: int = 0

    def __deepcopy__(self, memo: Any) -> Consultation:
        return replace(self, asked=list(self.asked))

    async def step(self, turn: Turn) -> Step:
        self.turns += 1
        key, said = rng.key(self.key, self.turns), decision(turn.text)
        if said is not None:
            worth = await self.env.patient.grade(self.prompt, said, key)
            return Step(None, worth, info={"diagnosis": said[0], "questions": self.asked, "turns": self.turns})
        found = re.search(r"<question>(.+?)</question>", turn.text, re.DOTALL)
        question = found[1].strip() if found else ""
        reply = await self.env.patient.reply(self.prompt, question, self.asked, key) if question else INVALID
        worth = worth_of(reply) if question else MALFORMED
        self.asked += [question] if question else []
        if self.turns >= self.prompt.info["budget"] or not turn.stopped:
            stop = "max_turns" if turn.stopped else "length"
            return Step(
                None,
                worth + EXHAUSTED,
                stop=stop,
                info={"diagnosis": None, "questions": self.asked, "turns": self.turns},
            )
        left = self.prompt.info["budget"] - self.turns
        return Step([{"role": "user", "content": f"{reply}\nTurns left: {left}."}], worth)


# ---- the plan


def reinforced(n: int = 8) -> Method:
    return grpo.but(
        name="doctoragent-rl", title="DoctorAgent-RL", paper="arXiv:2505.19630", doc=__doc__, rollout=sample.but(n=n),
        loss=clipped.but(low=0.2, high=0.28), terms=(entropy.but(coef=0.001),),
    )  # fmt: skip


@plan(paper="arXiv:2505.19630", title="DoctorAgent-RL", uses=("task",))
def doctoragent_rl(
    steps: int = 100, patient: str = "", dialogues: str = "", warmup: float = 1, budget: tuple[int, int] = (2, 10), graded: str = "words"
) -> Plan:  # fmt: skip
    """DoctorAgent-RL: the policy is a doctor who asks a patient one question a turn, within a number of turns that is drawn anew for each case
    and told to it, and ends with a diagnosis and a recommendation. GRPO over whole consultations; only the doctor's words are trained.

    turns:  +1 the patient told something new,  -1 it could not answer,  -2 asked before,  -2 neither a question nor a diagnosis,
            -5 more where the turns are used up without a diagnosis
    end:    5 F1(diagnosis) + 5 F1(recommendation), F1 of words with the case's;  A_i = (sum_i - mean) / std over 8 consultations
    Rows: question (what the patient says first), diagnosis (or answer), recommendation, and facts (a list) or case (a text), from which
    the patient answers. patient: a model (a folder, a hub id) that plays it; without one, it is scripted: the fact that shares most words with
    the question, once. graded="patient": that model gives 0 to 5 points for each of the two in place of F1.
    dialogues: a file of conversations (messages) to imitate first, for `warmup` epochs. budget: least and most turns.

    Departures: the authors' patient is Qwen2.5-7B; the scripted one understands words, not meanings. It says whether a question was asked
    before in the same breath. Its reward model version is graded="patient". The budget is drawn per question and step, so consultations of one
    group have the same, theirs may differ. 8 consultations, temperature 0.7, clip 0.2 and 0.28, entropy 0.001, no KL, 256 tokens a
    turn, budgets of 2 to 10 and all seven rewards are theirs; theirs are 128 cases a step (`--prompts 128`), 1 epoch, a rate of 1e-6 (`--lr`).
    """
    low, high = budget
    if steps < 1 or warmup < 0 or not 1 <= low <= high or graded not in ("words", "patient"):
        raise UserError(f"got steps={steps}, warmup={warmup}, budget={budget}, graded={graded!r}; 1 step and turn, the least first, words or patient")  # fmt: skip
    if graded == "patient" and not patient:
        raise UserError("graded by the patient, and no model plays it; name one with --plan.patient FOLDER")

    def env(context: Context) -> Consulting:
        c = context.config
        if "patient" not in context.made:
            model = load_model(patient, c.device or None, c.dtype).requires_grad_(False) if patient else None
            context.made["patient"] = Played(model, graded == "patient") if model is not None else Scripted()
        return Consulting(asked_task(context), context.made["patient"], budget)

    def ready(context: Context) -> None:
        first = asked_task(context).prompt(0)
        case_of(first)
        if not facts_of(first):
            raise UserError(f"the case {first.id} has nothing for the patient to answer from; give a column facts (a list of sentences) or case (a text)")  # fmt: skip

    warm = imitation(warmup, demonstrations(0, dialogues, "warmup")) if dialogues else ()
    learn = Phase("grpo", reinforced(), steps, env, rewards=written, measured=True)
    return Plan((*warm, learn), ready=ready, settings=(("sampling.temperature", 0.7), ("sampling.max_tokens", 256)))
