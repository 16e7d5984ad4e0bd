"""Questions that are answered by searching, turn by turn: any task of questions with gold answers, over documents of one's own.

    <think>...</think><search>words</search>    is answered with <information>the best documents</information>
    <think>...</think><answer>Paris</answer>    ends the episode

A turn ends with either (`STOP`, a setting of sampling), or where the policy ends it; the first <search> or <answer> in it counts. What the environment writes is observed,
so nothing of it is trained. `turns` searches at most; one more turn is left for the answer. Whoever builds the environment says where
documents come from (`retrieve`: an index, a model that plays one) and what an episode is worth (`pay`, told all that was done).
"""

from __future__ import annotations

import inspect
import re
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core import rng
from posttrain.core.answers import golds
from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Episode, Limits, Step
from posttrain.core.squad import exact
from posttrain.core.turn import Turn
from posttrain.core.types import Message, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.mapped import each
from posttrain.tools.search import pairs

ASK = (
    "Answer the question. Reason inside <think> and </think> whenever you have read something new. If you lack knowledge, search for it: "
    "write <search> words </search>, and the best documents come back between <information> and </information>. Search as often "
    "as you need. When you know enough, write the answer alone between <answer> and </answer>, for example <answer> Beijing </answer>.\n"
    "Question: {question}"
)
INVALID = (
    "That was neither a search nor an answer. To search, write <search> words </search>; to answer, write <answer> the answer </answer>. "
    "Try again."
)
STOP = "</search>|</answer>"  # what ends a turn: `("sampling.stop", STOP)` among the settings of a plan
_ACTION = re.compile(r"<(?P<kind>search|answer)>(?P<said>.*?)</(?P=kind)>", re.DOTALL)
_MOST_WORDS = 40  # of a query


@dataclass(frozen=True)
class Document:
    """What a search finds; documents are known by their titles."""

    title: str
    text: str


@dataclass
class Trail:
    """What an episode has done so far: what was said, searched for and found, and the answer."""

    texts: list[str] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    found: list[list[Document]] = field(default_factory=list)  # by each search
    answer: str | None = None

    def titles(self, searches: int | None = None) -> set[str]:
        """What the first so many searches found; all of them."""
        return {normal_title(d.title) for some in self.found[:searches] for d in some}


Found = Sequence[Document]
Retrieve = Callable[[Prompt, str, int], Found | Awaitable[Found]]  # (prompt, words, key of the draw)
Pay = Callable[[Prompt, Trail], float]


class Index:
    """A full-text index of a folder or a JSONL file of documents (SQLite FTS5, ranked by BM25)."""

    def __init__(self, documents: str) -> None:
        self.documents = [Document(title, text) for title, text in pairs(documents)]
        if not self.documents:
            raise UserError(f"{documents} holds no documents; it takes a row with a text for each")
        self.table, self.lock = sqlite3.connect(":memory:", check_same_thread=False), threading.Lock()
        self.table.execute("create virtual table documents using fts5(title, body, tokenize='porter unicode61')")
        self.table.executemany("insert into documents values (?, ?)", ((d.title, d.text) for d in self.documents))
        self.table.commit()

    def best(self, words: str, k: int) -> list[Document]:
        """The k documents that fit these words best."""
        asked = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", words)[:_MOST_WORDS])
        if not asked:
            return []
        with self.lock:
            rows = self.table.execute(
                "select rowid from documents where documents match ? order by rank limit ?", (asked, k)
            ).fetchall()
        return [self.documents[number - 1] for (number,) in rows]

    def drawn(self, k: int, *identity: object) -> list[Document]:
        """k documents at random: noise."""
        return rng.python("noise", *identity).sample(self.documents, min(k, len(self.documents)))

    def __deepcopy__(self, memo: Any) -> Index:
        return self  # it is only read

    def retrieve(self, k: int) -> Retrieve:
        """As an environment asks it."""
        return lambda prompt, words, key: self.best(words, k)


class Searching(Environment):
    """A task of questions in which documents can be searched for before answering."""

    def __init__(self, env: Environment, retrieve: Retrieve, pay: Pay, turns: int = 5, ask: str = ASK) -> None:
        if env.opens:
            raise UserError(f"{env.name} has turns of its own; searching takes a task of questions with answers")
        if not env.graded:
            raise UserError(f"{env.name} has no gold answers to search for; give rows with a question and an answer")
        if turns < 1 or "{question}" not in ask:
            raise UserError(
                f"got turns={turns} and instructions {ask[:40]!r}; at least one search, and {{question}} in the text"
            )
        self.env, self.retrieve, self.pay, self.name = each(env, asked(ask)), retrieve, pay, env.name
        self.limits = Limits(turns=turns + 1)

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return self.env.prompt(index, split)

    def size(self, split: str) -> int:
        return size_of(self.env, split)

    def open(self, prompt: Prompt, key: int) -> Search:
        return Search(self, prompt, key)

    def grade(self, prompt: Prompt, text: str) -> float:
        """1 where the text answers with a gold answer."""
        kind, said = action_of(text)
        return float(kind == "answer" and exact(said, golds(prompt)))


class Search(Episode):
    """One question, searched for."""

    def __init__(self, env: Searching, prompt: Prompt, key: int) -> None:
        self.env, self.prompt, self.key, self.trail = env, prompt, key, Trail()

    def __deepcopy__(self, memo: Any) -> Search:
        other = Search(self.env, self.prompt, self.key)
        mine = self.trail
        other.trail = Trail(list(mine.texts), list(mine.queries), list(mine.found), mine.answer)
        return other

    async def step(self, turn: Turn) -> Step:
        """Documents for a search; the end for an answer, for a turn that was cut off, and for the last turn."""
        trail, (kind, said) = self.trail, action_of(turn.text)
        trail.texts.append(turn.text)
        last = len(trail.texts) >= self.env.limits.turns
        if kind == "answer":
            trail.answer = said
            return self.ended("answered")
        if last or not turn.stopped:
            return self.ended("max_turns" if last else "length")
        if not kind:
            return Step([{"role": "user", "content": INVALID}])
        found = self.env.retrieve(self.prompt, said, rng.key(self.key, len(trail.queries)))
        trail.queries.append(said)
        trail.found.append(list(await found if inspect.isawaitable(found) else found))
        return Step([information(trail.found[-1])])

    def ended(self, why: str) -> Step:
        return Step(None, self.env.pay(self.prompt, self.trail), stop=why, info=told(self.trail))


def told(trail: Trail) -> dict[str, Any]:
    """A trail as a rollout keeps it."""
    return {
        "queries": trail.queries,
        "found": [[d.title for d in some] for some in trail.found],
        "answer": trail.answer,
        "searches": len(trail.queries),
    }


def action_of(text: str) -> tuple[str, str]:
    """What a turn does: ("search", words), ("answer", text), or nothing that counts."""
    found = _ACTION.search(text)
    return (found["kind"], found["said"].strip()) if found else ("", "")


def information(found: Iterable[Document]) -> Message:
    """Documents as the policy reads them."""
    titled = [(f" (Title: {d.title})" if d.title else ":", d.text.strip()) for d in found]
    listed = "\n".join(f"Doc {i}{title} {text}" for i, (title, text) in enumerate(titled, 1))
    return {"role": "user", "content": f"<information>{listed or 'nothing was found; try other words'}</information>"}


def asked(text: str) -> Callable[[Prompt, str], Prompt]:
    """A change of prompts: the question inside instructions; the question itself is kept as info["asked"]."""

    def change(prompt: Prompt, split: str) -> Prompt:
        whole = {**prompt.content[-1], "content": text.replace("{question}", prompt.last)}
        return replace(prompt, content=(*prompt.content[:-1], whole), info={**prompt.info, "asked": prompt.last})

    return change


# ---- which documents a question needs


def normal_title(title: object) -> str:
    return " ".join(str(title).casefold().split())


def supporting(prompt: Prompt) -> set[str]:
    """The titles of the documents that a row says its answer rests on: `supporting_facts` ([title, sentence] each, as HotpotQA and
    2WikiMultihopQA have them), `supporting` (titles), or `decomposition` with `context` (MuSiQue); empty where it says none."""
    facts = prompt.info.get("supporting_facts", prompt.info.get("supporting")) or ()
    if isinstance(facts, dict):
        facts = facts.get("title", ())
    names = [f[0] if isinstance(f, list | tuple) and f else f for f in facts]
    context = prompt.info.get("context")
    for hop in prompt.info.get("decomposition") or () if isinstance(context, list) else ():
        at = hop.get("paragraph_support_idx") if isinstance(hop, dict) else None
        if isinstance(at, int) and isinstance(context, list) and 0 <= at < len(context):
            names.append(context[at]["title"])
    return {normal_title(name) for name in names}


def recall(prompt: Prompt, trail: Trail, searches: int | None = None) -> float:
    """The share of the supporting documents that the first so many searches found."""
    wanted = supporting(prompt)
    return len(wanted & trail.titles(searches)) / len(wanted) if wanted else 0.0
