"""SSP (search self-play): one policy writes questions with the help of a search engine, checks them, and learns to answer them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_size
from posttrain.advantages.whiten import group_whiten
from posttrain.core import rng
from posttrain.core.answers import golds
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy, RolloutRequest, Step
from posttrain.core.registry import advantage, prompt_sampler, rollout
from posttrain.core.squad import exact, normal
from posttrain.core.turn import Turn
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.searching import (
    ASK,
    STOP,
    Document,
    Index,
    Search,
    Searching,
    Trail,
    action_of,
    information,
)
from posttrain.losses.aggregate import token_mean
from posttrain.losses.policy.ppo import ppo as clipped
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_index, asked_task, written
from posttrain.prompts.uniform import uniform
from posttrain.rewards.runtime.scorer import texts_of
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.rollouts.sample import sample

PROPOSE = (
    "Write a question whose only right answer is: {answer}. Search for facts about it first: write <search> words </search>, and documents come "
    "back between <information> and </information>. Use several of them, so that the question takes several searches to answer. Do not "
    "write the answer in it. At the end write <question> the question </question>."
)
CHECK = "Answer from these documents alone, with <answer> the answer </answer>.\n{documents}\nQuestion: {question}"
NOISE = 4  # documents that have nothing to do with a question, among those that it is checked with
_QUESTION = re.compile(r"<question>(.+?)</question>", re.DOTALL)

# ---- what questions are worth


def proposer_reward(acc: float, kind: str = "1-acc", left: float = 0.0, right: float = 1.0) -> float:
    """What an accepted question is worth: 1 - acc, acc the share of the solver's answers that were right; kind="between":
    4 (left + acc)(right - acc) for 0 < acc < 1, else 0."""
    if kind == "1-acc":
        return 1.0 - acc
    return 4 * (left + acc) * (right - acc) if 0 < acc < 1 else 0.0


@advantage(
    name="ssp",
    title="SSP",
    paper="arXiv:2510.18821",
    base="grpo",
    laws=("groups_are_separate",),
    reads=("group_B", "reward_BT"),
)
def raw_or_ranked(batch: Batch, eps: float = 1e-4) -> Tensor:
    """SSP: answers to one question are ranked among themselves; a question that was written, alone in its group, gets what it earned.

    A_i = (R_i - mean_group R) / (std_group R + eps) for groups of several;  A = R for a group of one: REINFORCE without a baseline
    """
    alone_B = group_size(batch["group_B"], torch.ones_like(batch.valid_B)) == 1
    ranked_B = group_whiten(batch.returns_B, batch["group_B"], batch.valid_B, eps)
    return broadcast_to_tokens(torch.where(alone_B, batch.returns_B, ranked_B), batch)


# ---- both roles


class SelfPlay(Searching):
    """Training prompts ask for a question to a known answer; test prompts are the task's questions. Both may search."""

    def __init__(
        self, env: Environment, index: Index, right: Callable[[Prompt, str], bool], turns: int = 10, k: int = 3
    ) -> None:
        super().__init__(env, index.retrieve(k), self.judged, turns)
        self.index, self.right, self.plain = index, right, env

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if split != "train":
            return super().prompt(index, split)
        p = self.plain.prompt(index, split)
        text = PROPOSE.replace("{answer}", str(golds(p)[0]))
        return Prompt(p.id, ({"role": "user", "content": text},), p.answer, {"role": "proposer"})

    def open(self, prompt: Prompt, key: int) -> Search:
        return Proposal(self, prompt, key) if prompt.info.get("role") == "proposer" else Search(self, prompt, key)

    def judged(self, prompt: Prompt, trail: Trail) -> float:
        return float(trail.answer is not None and self.right(prompt, trail.answer))


class Proposal(Search):
    """An episode of the proposer: it searches, and ends with a question."""

    async def step(self, turn: Turn) -> Step:
        found, trail = _QUESTION.search(turn.text), self.trail
        if found is None and action_of(turn.text)[0] != "answer":
            step = await super().step(turn)
            return step if step.messages is not None else self.over("", step.stop)
        trail.texts.append(turn.text)
        return self.over(found[1].strip() if found else "", "answered")

    def over(self, question: str, why: str) -> Step:
        read = [[d.title, d.text] for some in self.trail.found for d in some]
        return Step(None, 0.0, stop=why, info={"question": question, "queries": self.trail.queries, "read": read})


def well_formed(r: Rollout) -> bool:
    """A question that was searched for, and does not hold its answer."""
    said = f" {normal(r.info.get('question', ''))} "
    return bool(said.strip() and r.info.get("queries")) and not any(
        f" {normal(str(g))} " in said for g in golds(r.prompt)
    )


def checked(ask: RolloutRequest, env: SelfPlay, proposed: Sequence[Rollout]) -> list[bool]:
    """Whether the policy, without searching, answers each question right from what its proposer read and 4 documents of noise."""
    prompts = []
    for r in proposed:
        found = [Document(*pair) for pair in r.info["read"]] + env.index.drawn(NOISE, ask.seed, ask.step, r.prompt.id)
        rng.python("mixed", ask.seed, ask.step, r.prompt.id).shuffle(found)
        text = CHECK.replace("{question}", r.info["question"]).replace(
            "{documents}", str(information(dict.fromkeys(found))["content"])
        )
        prompts.append(Prompt.text(f"{r.prompt.id}/check-{ask.step}", text, r.prompt.answer, asked=r.info["question"]))
    made = ask.policy.sample(prompts, 1, ask.sampling, ask.seed, ask.step) if prompts else []
    said = [action_of(answers[0].text) for answers in made]
    return [kind == "answer" and env.right(p, text) for p, (kind, text) in zip(prompts, said, strict=True)]


def to_solve(name: str, question: str, answer: Any, fresh: bool) -> Prompt:
    """A question that was written, as the solver is asked it."""
    return Prompt.text(name, ASK.replace("{question}", question), answer, asked=question, proposed=fresh)


@rollout(name="ssp", title="SSP", paper="arXiv:2510.18821", base="sample")
def self_play(
    ask: RolloutRequest, n: int = 5, gate: bool = True, kind: str = "1-acc", rejected: float = 0.0
) -> list[Group]:
    """SSP: a question is written for each answer, with searches, and checked; n answers are sampled to those that pass.

    proposer: 1 - mean solver reward for an accepted question, `rejected` for any other;  a group of its own, of one
    solver: 1 for a right answer;  in place of a rejected question an earlier one (`info["spare"]`, from the curriculum) is asked
    gate: a question is accepted where the policy answers it from what the proposer read and 4 other documents
    """
    env = ask.env
    if not isinstance(env, SelfPlay):
        raise UserError("ssp plays in its own environment of searches; use posttrain run ssp")
    if not any(p.info.get("role") == "proposer" for p in ask.prompts):
        return sample(ask, n=n)  # questions of the task: held-out ones
    proposed = [g.rollouts[0] for g in sample(ask, n=1)]
    sound = [r for r in proposed if well_formed(r)]
    passed = checked(ask, env, sound) if gate else [True] * len(sound)
    accepted = {r.prompt.id for r, ok in zip(sound, passed, strict=True) if ok}
    questions: dict[str, Prompt] = {}
    for r in proposed:
        spare = r.prompt.info.get("spare")
        if r.prompt.id in accepted:
            questions[r.prompt.id] = to_solve(
                f"{r.prompt.id}/asked-{ask.step}", r.info["question"], r.prompt.answer, True
            )
        elif spare:
            questions[r.prompt.id] = to_solve(f"{r.prompt.id}/again-{ask.step}", spare[0], spare[1], False)
    solved = sample(ask.but(prompts=list(questions.values())), n=n) if questions else []
    answers = dict(zip(questions, solved, strict=True))
    for r in proposed:
        acc = answers[r.prompt.id].rollouts if r.prompt.id in accepted else []
        r.reward = proposer_reward(sum(x.total > 0 for x in acc) / len(acc), kind) if acc else rejected
        r.role, r.info = "proposer", r.info | {"accepted": r.prompt.id in accepted}
    for x in (x for g in solved for x in g.rollouts):
        x.role = "solver"
    return [*(Group(r.prompt, [r]) for r in proposed), *solved]


@prompt_sampler(
    name="question_replay", title="Question replay (SSP)", paper="arXiv:2510.18821", base="uniform", system="ssp"
)
class Replay:
    """Question replay (SSP): answers to write questions for, each with an earlier accepted question in case the new one is rejected.

    Accepted questions are kept, and all are dropped every `clear` steps, since they were right for an older policy.
    """

    def __init__(self, clear: int = 10) -> None:
        self.inner = uniform.live()  # type: ignore[attr-defined]  # a class that a decorator made a Part
        self.clear, self.questions, self.steps = clear, list[tuple[str, Any]](), 0

    def start(self, env: Environment, seed: int) -> None:
        self.seed = seed
        self.inner.start(env, seed)

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        prompts, draw = self.inner.propose(n, step, policy), rng.python(self.seed, "spare", step)
        if not self.questions:
            return list(prompts)
        return [replace(p, info={**p.info, "spare": draw.choice(self.questions)}) for p in prompts]

    def observe(self, groups: list[Group]) -> None:
        self.steps += 1
        fresh = [(str(g.prompt.info["asked"]), g.prompt.answer) for g in groups if g.prompt.info.get("proposed")]
        self.questions = [] if self.steps % self.clear == 0 else self.questions + fresh

    def state_dict(self) -> dict[str, Any]:
        return {"questions": [list(q) for q in self.questions], "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.questions, self.steps = [(q, a) for q, a in state["questions"]], int(state["steps"])


# ---- the plan


@plan(paper="arXiv:2510.18821", title="SSP", uses=("task",))
def ssp(
    steps: int = 200, documents: str = "", judge: str = "", gate: bool = True, kind: str = "1-acc", rejected: float = 0.0, turns: int = 10
) -> Plan:  # fmt: skip
    """SSP (search self-play): of the task only the answers are used. For each, the policy as proposer searches and writes a question; the policy
    itself must be able to answer it from what the proposer read, among documents of noise; the policy as solver then searches and answers it.

    proposer: R = 1 - acc for an accepted question, acc over 5 answers of the solver;  `rejected` otherwise;  A = R (REINFORCE, one sample)
    solver:   R = [right];  A_i = (R_i - mean) / std over its 5 answers (GRPO)
    accepted: well formed (searched for, without the answer in it), and answered right from the proposer's documents and 4 others
    documents: a folder or JSONL file that both search. judge: a reward that says whether an answer is right (judge(url=...), mine.py:function;
    0.5 or more counts); without, it must be a gold answer up to case, punctuation and articles. gate=False: no check. kind="between" pays
    questions of middling difficulty, 4 acc (1 - acc). In place of a rejected question an earlier accepted one is solved; those are
    all dropped every 10 steps. Held-out: the questions of the task, with searches.

    Departures: the authors update twice, from the proposer's samples and from the solver's; here both are in the same updates. Their judge is a
    language model; without `judge` it is exact match. Rejected questions earn 0 as in their script (-1 in its defaults: `--plan.rejected
    -1`). 3 documents a search are this package's. 5 answers, KL 0.01 (k3), clip 0.2 and 0.285, two minibatches, 10 turns and
    4 documents of noise are theirs; theirs are 256 questions a step (`--prompts 256`), 8,192 tokens an episode and a rate of 1e-6 (`--lr`).
    """
    if steps < 1 or turns < 1 or kind not in ("1-acc", "between"):
        raise UserError(f"got steps={steps}, turns={turns}, kind={kind!r}; at least 1 of each, and 1-acc or between")
    method = grpo.but(
        name="ssp", title="SSP", paper="arXiv:2510.18821", doc=__doc__, prompts=Replay, advantage=raw_or_ranked, aggregate=token_mean,
        rollout=self_play.but(n=5, gate=gate, kind=kind, rejected=float(rejected)), loss=clipped.but(low=0.2, high=0.285),
        terms=(kl.but(coef=0.01, kind="k3"),), minibatches=2,
    )  # fmt: skip

    def env(context: Context) -> SelfPlay:
        index, task = asked_index(context, documents, "ssp"), asked_task(context)
        scorer = build_scorer(judge, task, context.config.reward_timeout, context.config.device) if judge else None

        def right(prompt: Prompt, answer: str) -> bool:
            if scorer is None:
                return exact(answer, golds(prompt))
            asked = Prompt.text(prompt.id, str(prompt.info.get("asked", prompt.last)), prompt.answer)
            return texts_of(scorer, [asked], [answer])[0] >= 0.5

        return SelfPlay(task, index, right, turns)

    def ready(context: Context) -> None:
        env(context)

    learn = Phase("self-play", method, steps, env, rewards=written, measured=True)
    own = (("sampling.max_tokens", 512), ("sampling.stop", f"{STOP}|</question>"))
    return Plan((learn,), ready=ready, settings=own)
