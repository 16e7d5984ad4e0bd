"""FrugalRAG: first learn to search widely, then learn when to stop: as soon as the documents that a question needs are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import RolloutRequest
from posttrain.core.turn import Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.environments.searching import (
    STOP,
    Index,
    Searching,
    Trail,
    action_of,
    information,
    plain,
    recall,
    supporting,
)
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.from_pairs import ENDLESS, epochs_of
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_index, asked_task, written
from posttrain.methods.sft import sft
from posttrain.rollouts.sample import sample

ASK = (
    "Find the documents that are needed to answer the question. Each time reason inside <think> and </think>, then write <search> words "
    "</search>, and the best documents come back between <information> and </information>. As soon as nothing is missing, finish "
    "with the answer: <answer> the answer </answer>.\nQuestion: {question}"
)
UNKNOWN = 0.6  # the recall to reach where nobody measured one

# ---- what episodes are worth


def logit(x: float) -> float:
    """log((1 - x) / x), x kept inside of (0, 1)."""
    x = min(max(x, 1e-6), 1 - 1e-6)
    return math.log((1 - x) / x)


def stopping(h: int, best: int, found: bool, budget: int = 6, most: float = 2.0, zeta: float = 2.0) -> float:
    """What stopping after h searches is worth, when the `best`-th of them was the last that found something new.

    found and h = best:  most + zeta best / budget: on time, and more for a question that needs many
    found and h > best:  log((1 - x) / x), x = (h - best) / budget, within [-most, most - 0.1]
    not found:           log((1 - x) / x), x = |h - budget| / budget, within [-most, 0]: search on
    """
    if not found:
        return max(-most, min(logit(abs(h - budget) / budget), 0.0))
    if h > best:
        return max(-most, min(logit((h - best) / budget), most - 0.1))
    return most + zeta * best / budget


def first_best(prompt: Prompt, trail: Trail) -> tuple[int, float]:
    """(the first search after which the recall never rose, the recall then); 0 searches where nothing was found."""
    curve = [recall(prompt, trail, n) for n in range(len(trail.found) + 1)]
    top = max(curve)
    return curve.index(top), top


def payer(reference: dict[str, float], budget: int, form: float) -> Callable[[Prompt, Trail], float]:
    """What an episode is worth: when it stopped, and how well its searches were formed. reference: recall to reach, by prompt."""

    def pay(prompt: Prompt, trail: Trail) -> float:
        best, top = first_best(prompt, trail)
        found = top > 0 and top >= reference.get(prompt.id, UNKNOWN)
        tried = [t for t in trail.texts if action_of(t, plain(prompt))[0] != "answer"]
        formed = sum(form if action_of(t)[0] == "search" else -form for t in tried) / len(tried) if tried else 0.0
        return stopping(len(trail.queries), best, found, budget) + formed

    return pay


# ---- exploring


class Explorer:
    """Searches of one question, each the best of several candidates: the one that raised the recall most (the first of equals)."""

    def __init__(self, prompt: Prompt, index: Index, k: int) -> None:
        self.prompt, self.index, self.k, self.trail = prompt, index, k, Trail()
        self.messages: list[Message] = []

    def take(self, texts: list[str]) -> None:
        tried = [(text, action_of(text)[1]) for text in texts if action_of(text)[0] == "search"]
        if not tried:  # nobody searched: the next step is asked with other draws
            return
        worth = []
        for at, (text, words) in enumerate(tried):
            found = self.index.best(words, self.k)
            after = replace(self.trail, found=[*self.trail.found, found])
            worth.append((recall(self.prompt, after), -at, text, words, found))
        _, _, text, words, found = max(worth, key=lambda w: w[:2])
        self.trail.queries.append(words)
        self.trail.found.append(found)
        self.trail.texts.append(text)
        self.messages += [{"role": "assistant", "content": text}, information(found)]


def explored(ask: RolloutRequest, index: Index, searches: int, candidates: int, k: int) -> list[Explorer]:
    """Every question searched for as widely as the budget allows, with several candidates at each step and no end before it."""
    going = [Explorer(p, index, k) for p in ask.prompts]
    for hop in range(searches):
        asked = [Prompt(f"{e.prompt.id}/{hop}", (*e.prompt.content, *e.messages)) for e in going]
        begun = [[Turn.empty(ask.policy.observe(p))] for p in asked]
        keys = [[rng.key(ask.seed, ask.step, p.id, i) for i in range(candidates)] for p in asked]
        for e, turns in zip(going, ask.policy.act(begun, keys, ask.sampling, version=ask.step), strict=True):
            e.take([t.text for t in turns])
    return going


def conversation(e: Explorer, finish: bool) -> list[Message]:
    """What is imitated: the searches that were kept, all of them, or up to the last that helped and then the answer."""
    best, _ = first_best(e.prompt, e.trail)
    if not finish or not best:
        return [*e.prompt.content, *e.messages[:-1]]  # ends with its last search
    gold = e.prompt.answer[0] if isinstance(e.prompt.answer, list | tuple) else e.prompt.answer
    return [
        *e.prompt.content,
        *e.messages[: 2 * best],
        {"role": "assistant", "content": str(gold) if plain(e.prompt) else f"<answer>{gold}</answer>"},
    ]


# ---- the plan


def reinforced() -> Method:
    return grpo.but(name="frugalrag", title="FrugalRAG", paper="arXiv:2507.07634", doc=__doc__, rollout=sample.but(n=8), terms=(kl.but(coef=0.1, kind="k3"),))  # fmt: skip


@plan(paper="arXiv:2507.07634", title="FrugalRAG", uses=("task",))
def frugalrag(
    steps: int = 400, documents: str = "", questions: int = 1000, searches: int = 5, k: int = 3, candidates: int = 7, form: float = 0.5
) -> Plan:  # fmt: skip
    """FrugalRAG: a search agent that first imitates its own widest searches, and then learns by GRPO to stop at the right one.

    1. Explore: at each step `candidates` are sampled, and the one whose documents raise the recall of the supporting documents most is kept;
       SFT for an epoch on what was kept, 9 in 10 without an end (so it searches on), 1 in 10 ended with the answer after the last that helped.
    2. The model of 1 searches with no end once more: its recall on each question is what counts as found.
    3. GRPO: h searches, h* the first after which the recall of this episode never rose, B = searches + 1:
       h = h*: 2 + 2 h* / B;  h > h*: log((1 - x) / x), x = (h - h*) / B, in [-2, 1.9];  not found: x = |h - B| / B, in [-2, 0]
       plus the mean of +-form over its searches (well formed or not). The answer is not paid.
    documents: a folder or JSONL file; rows name the titles that they rest on (supporting_facts, supporting, or MuSiQue's decomposition).

    Departures: the answer is written by the agent itself when it stops, the authors leave it to a separate generator; it is compared, not
    paid. Where nothing is found, their formula stops asking for more at B / 2, and so does this. They fall back on the F1 of supporting
    sentences on two sets; here recall alone. Their prompts are tuned by DSPy. 8 episodes, temperature 0.9, KL 0.1, 400 steps, 7 candidates,
    B = 6, zeta 2, +-0.5 (0.25 for Llama: `--plan.form 0.25`), a recall of 0.6 where none was measured and 1,000 questions are theirs;
    their rates are 1e-4 for SFT and 1e-6 for GRPO, here one for both (`--lr`).
    """
    if min(steps, questions, searches, k, candidates) < 1 or form < 0:
        raise UserError("steps, questions, searches, k and candidates are at least 1, and form at least 0")

    def index(context: Context) -> Index:
        return asked_index(context, documents, "frugalrag")

    def env(context: Context) -> Searching:
        known = context.run is not None and context.run.artifact("recall").exists()
        rows = context.run.read_artifact("recall") if known else []
        pay = payer({row["id"]: row["recall"] for row in rows}, searches + 1, form)
        return Searching(asked_task(context), index(context).retrieve(k), pay, searches, ASK)

    def ready(context: Context) -> None:
        first = env(context).prompt(0)
        if not supporting(first):
            raise UserError(
                f"frugalrag pays the recall of supporting documents, and the row {first.id} names none; give a column supporting with their "
                "titles, or HotpotQA's supporting_facts"
            )

    def wide(context: Context, candidates: int) -> Iterator[Explorer]:
        """The training questions, explored by the policy as it is."""
        c, whole = context.config, env(context)
        prompts = [whole.prompt(i) for i in range(min(questions, size_of(whole, "train") or ENDLESS))]
        for at in range(0, len(prompts), 64):
            ask = RolloutRequest(
                {"policy": context.role("policy")}, prompts[at : at + 64], c.sampling, c.seed, at, whole
            )
            yield from explored(ask, index(context), searches, candidates, k)

    def explore(context: Context) -> None:
        kept = [e for e in wide(context, candidates) if e.trail.queries]
        if not kept:
            raise UserError("no candidate of any question was a search (<search> words </search>), so there is nothing to imitate; use a model that keeps to the form")  # fmt: skip
        rows = [
            conversation(e, finish=rng.python(context.config.seed, e.prompt.id, "finish").random() < 0.1) for e in kept
        ]
        context.notes["recall_explored"] = sum(recall(e.prompt, e.trail) for e in kept) / len(kept)
        context.run.write_artifact("explored", [{"messages": row} for row in rows])

    def measure(context: Context) -> None:
        reached = {e.prompt.id: recall(e.prompt, e.trail) for e in wide(context, 1)}
        context.notes["recall_without_end"] = sum(reached.values()) / len(reached)
        context.run.write_artifact("recall", [{"id": name, "recall": x} for name, x in reached.items()])

    def imitated(context: Context) -> Listed:
        rows = [row["messages"] for row in context.run.read_artifact("explored")]
        made = [Prompt(f"explored-{i}", tuple(row[:-1]), info={"imitated": row[-1]}) for i, row in enumerate(rows)]
        return Listed(asked_task(context).name, tuple(made), ())

    warm = Phase("sft", sft, epochs_of(imitated, 1), imitated, rewards=written)
    learn = Phase("grpo", reinforced(), steps, env, rewards=written, measured=True)
    parts = (Do("explore", explore), warm, Do("recall", measure), learn)
    return Plan(
        parts,
        ready=ready,
        settings=(("sampling.temperature", 0.9), ("sampling.max_tokens", 256), ("sampling.stop", STOP)),
    )
