"""1-shot RLVR: learn once from the whole set, see which example's accuracy varies most, then learn from that one alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import pstdev
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import prompt_sampler
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.entropy import entropy
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.prompts.uniform import copy_of, uniform

History = dict[str, list[float]]  # the training accuracy of each example at each pass, by its id


def ranked(history: History) -> list[tuple[str, float]]:
    """(id, score) of every example that was seen twice, highest first: the standard deviation of its accuracy over training.

    v_i = std(s_i1 ... s_iE), s_ie the share of right answers of example i at pass e; ties by id
    """
    found = [(name, pstdev(told)) for name, told in history.items() if len(told) > 1]
    return sorted(found, key=lambda item: (-item[1], item[0]))


@prompt_sampler(paper="arXiv:2504.20571")
class recorded:
    """Recorded: every example of the set as often as any other, and what share of its answers was right at each pass.

    first > 0: only the first so many of the set. The record is part of the state, so a resumed run has all of it.
    """

    def __init__(self, first: int = 0, into: History | None = None) -> None:
        self.first, self.history = first, {} if into is None else into

    def start(self, env: Environment, seed: int) -> None:
        size = size_of(env, "train")
        self.inner: Any = uniform.but(pool=min(self.first or size, size or self.first)).live()  # type: ignore[attr-defined]
        self.inner.start(env, seed)

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        proposed: list[Prompt] = self.inner.propose(n, step, policy)
        return proposed

    def observe(self, groups: list[Group]) -> None:
        for g in groups:
            if g.scored:
                mean = sum(r.total for r in g.scored) / len(g.scored)
                self.history.setdefault(g.prompt.id, []).append(mean)

    def state_dict(self) -> dict[str, Any]:
        return {"history": self.history}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.history.clear()
        self.history.update(state["history"])


@prompt_sampler(paper="arXiv:2504.20571")
class repeated:
    """Repeated: the batch is filled with copies of the set's few examples, in turn; every copy is a group of its own."""

    def start(self, env: Environment, seed: int) -> None:
        self.env, self.few = env, size_of(env, "train")

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        if not self.few:
            raise UserError("`repeated` fills a batch with copies of a few examples, and this set never ends")
        return [copy_of(self.env.prompt(i % self.few), i // self.few) for i in range(n)]

    def observe(self, groups: list[Group]) -> None:
        """It chose before training."""


@dataclass(frozen=True)
class Chosen(Environment):
    """A few training examples of another set, which still grades and tests."""

    whole: Environment
    few: Sequence[Prompt]

    @property
    def name(self) -> str:
        return f"{len(self.few)} of {self.whole.name}"

    @property
    def graded(self) -> bool:
        return self.whole.graded

    def size(self, split: str = "train") -> int:
        return len(self.few) if split == "train" else size_of(self.whole, split)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return self.few[index % len(self.few)] if split == "train" else self.whole.prompt(index, split)

    def grade(self, prompt: Prompt, text: str) -> float:
        return self.whole.grade(prompt, text)


class Work:
    """Between the two runs: the record is ranked and the examples are kept."""

    def __init__(self, first: int, epochs: float, rank: int, keep: int) -> None:
        self.first, self.epochs, self.rank, self.keep = first, epochs, rank, keep
        self.history: History = {}

    def size(self, context: Context) -> int:
        """How many examples the first run sees."""
        size = size_of(asked_task(context), "train")
        return min(self.first, size) if size else self.first

    def passes(self, context: Context) -> int:
        steps: int = math.ceil(self.epochs * self.size(context) / context.config.prompts)
        if self.epochs < 2 or self.size(context) < self.rank + self.keep - 1:
            told = f"{self.size(context)} examples, epochs={self.epochs:g}, rank={self.rank}, keep={self.keep}"
            raise UserError(f"got {told}; variance takes 2 passes at least, and as many examples as are asked for")
        return steps

    def record(self, context: Context) -> None:
        rows = [{"id": name, "std": std, "accuracy": self.history[name]} for name, std in ranked(self.history)]
        context.run.write_artifact("history", rows)

    def choose(self, context: Context) -> None:
        rows = context.run.read_artifact("history")[self.rank - 1 : self.rank - 1 + self.keep]
        if not rows or not rows[0]["std"]:
            why = "every answer of every example was right, or none was, all along"
            raise UserError(f"no example's accuracy varied in the first run ({why}); take another set or more epochs")
        context.notes["examples"] = [{"id": r["id"], "std": r["std"]} for r in rows]

    def few(self, context: Context) -> Chosen:
        env, wanted = asked_task(context), [x["id"] for x in context.notes["examples"]]
        every = {p.id: p for p in (env.prompt(i, "train") for i in range(self.size(context)))}
        return Chosen(env, [every[name] for name in wanted])


@plan(paper="arXiv:2504.20571", title="1-shot RLVR")
def one_shot_rlvr(steps: int = 200, epochs: float = 50.0, first: int = 1209, rank: int = 1, keep: int = 1) -> Plan:
    """1-shot RLVR: GRPO on one example of a whole set, the one whose accuracy varied most while the whole set was learned.

    v_i = std over passes of the share of right answers to example i;  the batch is --prompts copies of the winner
    The first run (`first` examples at most, `epochs` passes) is made on a copy; the policy itself learns from the chosen
    example alone. rank: 1 takes the highest v, 2 the next ...; keep: how many, from that rank on. Both runs are GRPO with 8
    answers, a KL of 0.001 (k3) and an entropy bonus of 0.001. The artifact `history` holds every example's record.

    Departures: the paper's batch is 128 copies at temperature 0.6, learned for 2,000 steps at 1e-6; here `--prompts` copies
    (16), temperature 1 (`--sampling.temperature 0.6`), 200 steps and a learning rate by size. Its record is that of 500 steps
    of 128 on 1,209 examples, about 50 passes, as here. The reward is the task's own grade, or `--reward`.
    """
    if steps < 1 or rank < 1 or keep < 1 or first < 1:
        raise UserError(f"got steps={steps}, first={first}, rank={rank}, keep={keep}; each is 1 at least")
    work = Work(first, epochs, rank, keep)
    learn = grpo.but(terms=(kl.but(coef=0.001, kind="k3"), entropy.but(coef=0.001)), aggregate=token_mean)
    whole = learn.but(prompts=recorded.but(first=first, into=work.history))  # type: ignore[attr-defined]
    return Plan(
        (
            Phase(
                "whole-set", whole, work.passes, asked_task, role="whole-set", make=lambda c: c.role("policy").clone(),
                rewards=asked_rewards, after=work.record,
            ),
            Do("choose", work.choose),
            Phase("one-shot", learn.but(prompts=repeated), steps, work.few, rewards=asked_rewards),
        )
    )  # fmt: skip
