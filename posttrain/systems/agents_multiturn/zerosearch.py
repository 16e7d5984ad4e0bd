"""ZeroSearch: learn to search without a search engine; a model writes the documents, more and more of them misleading."""

from __future__ import annotations

import copy
import re
from collections.abc import Awaitable, Callable
from typing import Any

from posttrain.core.answers import golds
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.rng import python
from posttrain.core.sampling import Sampling
from posttrain.core.squad import word_f1
from posttrain.core.types import Group, Prompt
from posttrain.environments.data import DataEnvironment, data
from posttrain.environments.rows import Bad, read_rows
from posttrain.environments.searching import STOP, Document, Found, Index, Retrieve, Searching, Trail
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task, written
from posttrain.methods.sft import sft
from posttrain.policies.load import load_model
from posttrain.rollouts.asked import Asked
from posttrain.rollouts.sample import sample

WRITE = (
    "You are a search engine. Write {k} {kind} documents for a query, each of about 30 words, one per line, as Doc 1: ..., Doc 2: ...\n"
    'The user wants to answer the question "{question}", whose answer is {answer}. The documents hold {kind} information.\n'
    "Query: {query}\n{Kind} output:\n"
)
_DOC = re.compile(r"^\s*Doc\s*\d+\s*:\s*", re.MULTILINE)
Engine = Callable[[Prompt, str, int, bool], Found | Awaitable[Found]]  # (prompt, query, key, noisy)

# ---- documents


def noise(step: int, steps: int, start: float = 0.0, end: float = 0.5, base: float = 4.0) -> float:
    """The share of searches that are answered with noise, at a step.

    p_i = start + (base^(i / steps) - 1) / (base - 1) (end - start):  start at the first step, end at the last, most of the rise late
    """
    risen: float = (base ** (min(step, steps) / steps) - 1) / (base - 1)
    return start + risen * (end - start)


def written_for(prompt: Prompt, query: str, noisy: bool, k: int) -> str:
    """What the model that plays the engine is asked; it is told the answer, so useful documents hold it."""
    kind = "noisy" if noisy else "useful"
    told = {"k": str(k), "kind": kind, "Kind": kind.title(), "query": query, "question": str(prompt.info.get("asked", prompt.last)),
            "answer": str(golds(prompt)[0])}  # fmt: skip
    return re.sub(r"\{(\w+)\}", lambda m: told[m[1]], WRITE)


def simulated(policy: Policy, k: int) -> Engine:
    """Documents that a frozen model writes."""
    asked = Asked(policy, Sampling(max_tokens=256, temperature=0.8))

    async def search(prompt: Prompt, query: str, key: int, noisy: bool) -> Found:
        text = await asked.ask(Prompt.text(f"search-{key}", written_for(prompt, query, noisy, k)))
        return [Document("", one.strip()) for one in _DOC.split(text) if one.strip()][:k]

    return search


def indexed(index: Index, k: int) -> Engine:
    """The best documents of a real index, or as many drawn at random."""
    return lambda prompt, query, key, noisy: index.drawn(k, key) if noisy else index.best(query, k)


class Simulated(Searching):
    """Searching where a share p of the searches finds noise, drawn once for each: all its documents are useful or none is."""

    def __init__(self, env: Any, engine: Engine, turns: int = 5) -> None:
        super().__init__(env, answered_by(engine, 0.0), f1_of_answer, turns)
        self.engine = engine

    def with_noise(self, p: float) -> Simulated:
        other = copy.copy(self)
        other.retrieve = answered_by(self.engine, p)
        return other


def answered_by(engine: Engine, p: float) -> Retrieve:
    return lambda prompt, query, key: engine(prompt, query, key, python("noisy", key).random() < p)


def f1_of_answer(prompt: Prompt, trail: Trail) -> float:
    """F1 of the words of the answer and of the best gold one; 0 without an answer. The form is not paid."""
    return word_f1(trail.answer or "", golds(prompt))


# ---- how answers are made


@rollout(title="ZeroSearch", paper="arXiv:2505.04588", base="sample", system="zerosearch")
def simulated_search(
    ask: RolloutRequest, n: int = 5, steps: int = 203, start: float = 0.0, end: float = 0.5, base: float = 4.0
) -> list[Group]:
    """ZeroSearch: episodes whose searches find noise with a probability that grows over the run.

    p_i = start + (base^(i / steps) - 1) / (base - 1) (end - start) at step i
    """
    if not isinstance(ask.env, Simulated):
        raise UserError("zerosearch samples in its own environment of searches; use posttrain run zerosearch")
    return sample(ask.but(env=ask.env.with_noise(noise(ask.step, steps, start, end, base))), n=n)


# ---- the plan


def labelled_documents(file: str, k: int) -> DataEnvironment:
    """Rows with query, documents and useful (true or false), and question and answer where known, to teach a model to play the engine."""
    rows = []
    for where, row in read_rows(file):
        if (
            isinstance(row, Bad)
            or not {"query", "documents", "useful"} <= set(row)
            or not isinstance(row["useful"], bool)
        ):
            told = row.reason if isinstance(row, Bad) else "it takes query, documents and useful (true or false)"
            raise UserError(f"{file}, {where}: {told}")
        found = row["documents"] if isinstance(row["documents"], list) else [row["documents"]]
        about = Prompt.text("", str(row.get("question", row["query"])), row.get("answer", "not known"))
        text = "\n".join(f"Doc {i}: {d}" for i, d in enumerate(found, 1))
        rows.append({"question": written_for(about, str(row["query"]), not row["useful"], k), "answer": text})
    return data({"train": rows})


def reinforced(steps: int, start: float, end: float) -> Method:
    """GRPO over 5 episodes, with the documents' noise rising over `steps`."""
    return grpo.but(
        name="zerosearch", title="ZeroSearch", paper="arXiv:2505.04588", doc=__doc__, aggregate=token_mean,
        rollout=simulated_search.but(n=5, steps=steps, start=start, end=end), terms=(kl.but(coef=0.001, kind="k3"),),
    )  # fmt: skip


@plan(paper="arXiv:2505.04588", title="ZeroSearch", uses=("task",))
def zerosearch(
    steps: int = 203, simulator: str = "", labelled: str = "", documents: str = "", noise: tuple[float, float] = (0.0, 0.5),
    turns: int = 5, k: int = 5,
) -> Plan:  # fmt: skip
    """ZeroSearch: a search agent learns against a frozen language model that plays the search engine, so no engine is called. Searches are
    answered with useful documents at first, and more and more with noise, which teaches to reason in spite of it.

    p_i = p_s + (4^(i/m) - 1) / 3 (p_e - p_s): the chance that step i of m answers a search with noise, noise = (p_s, p_e)
    r = F1 of the answer's words, the best over the gold answers; A_i = (r_i - mean) / std over 5 episodes; documents are not trained on
    simulator: a model (a folder, a hub id) that plays the engine. labelled: a JSONL file with query, documents and useful (true or
    false) on which it is fine-tuned first for an epoch; with labelled alone a copy of the policy is. documents: a folder or JSONL file, for
    a real index in place of a model: useful are the k best documents, noise k at random. turns: searches at most.

    Departures: the model that plays the engine is told the question and its answer, as the authors', so what it writes may give the answer
    away; `documents` cannot. Only GRPO is here; REINFORCE and PPO, which the paper finds to work too, are not. Nothing that was sampled is encoded again. Held-out questions are asked at p_s (with labelled, without searching:
    the engine is not there yet before training). 5 episodes, base 4, noise 0 to
    0.5, 5 turns, 5 documents, KL 0.001 in the k3 form, 203 steps, a rate that rises over 0.95 of them, 500 tokens a turn and temperature 1
    are the authors'; theirs are 64 questions a step (`--prompts 64`) and a rate of 1e-6 (`--lr`).
    """
    start, end = noise
    if steps < 1 or turns < 1 or k < 1 or not (0 <= start <= 1 and 0 <= end <= 1):
        raise UserError(
            f"got steps={steps}, turns={turns}, k={k}, noise={noise}; 1 of each at least, and noise from 0 to 1"
        )

    def engine(context: Context) -> Any:
        c = context.config
        return load_model(simulator, c.device or None, c.dtype) if simulator else context.role("policy").clone()

    def env(context: Context) -> Simulated:
        if documents and "engine" not in context.made:
            context.made["engine"] = indexed(Index(documents), k)
        elif "engine" not in context.made:
            played = context.roles["simulator"] if "simulator" in context.roles else engine(context)
            context.made["engine"] = simulated(played.requires_grad_(False), k)
        return Simulated(asked_task(context), context.made["engine"], turns)

    def ready(context: Context) -> None:
        if bool(documents) == bool(simulator or labelled):
            raise UserError(
                "zerosearch needs somebody who answers searches: a model that plays the engine (--plan.simulator FOLDER), rows to make one from "
                "(--plan.labelled FILE.jsonl), or your documents with noise among them (--plan.documents FOLDER), and not both"
            )
        Simulated(asked_task(context), indexed(Index(documents), k) if documents else lambda *a: [], turns)
        if labelled:
            labelled_documents(labelled, k)

    def rows(context: Context) -> DataEnvironment:
        return labelled_documents(labelled, k)

    taught = (Phase("simulator", sft, epochs_of(rows, 1), rows, role="simulator", make=engine, rewards=written),)
    learn = Phase("grpo", reinforced(steps, start, end), steps, env, rewards=written, measured=not labelled)
    own = (
        ("sampling.max_tokens", 500),
        ("sampling.stop", STOP),
        ("warmup", round(0.95 * steps)),
        ("schedule", "constant"),
    )
    return Plan((*(taught if labelled else ()), learn), ready=ready, settings=own)
