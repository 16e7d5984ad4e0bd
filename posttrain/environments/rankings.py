"""Ranked lists from a file: several answers to one prompt, with a score or a rank for each.

{"prompt": ..., "responses": ["a", "b", "c"], "scores": [0.1, 0.9, 0.5]}
{"prompt": ..., "responses": ["a", "b", "c"], "ranks": [3, 1, 2]}          the rank of each answer, 1 for the best
{"prompt": ..., "responses": ["a", "b", "c"], "ranking": [1, 2, 0]}        places of the answers, the best first
{"prompt": ..., "answers": [{"answer": "a", "rank": 2}, {"answer": "b", "rank": 1}]}
{"instruction": ..., "completions": [{"response": "a", "overall_score": 7, "annotations": {"honesty": {"Rating": "5"}}}, ...]}
{"prompt": ..., "chosen": ["a", "b"], "rejected": ["c"]}                   several good answers and several bad ones
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.types import Message, Prompt
from posttrain.environments.fields import (
    PREFERENCES,
    cell,
    checked_text,
    conversation_of,
    need,
    reply,
    under,
    with_system,
)
from posttrain.environments.questions import Layout, Raw
from posttrain.environments.strengths import number

_TEXT = (
    "response",
    "text",
    "content",
    "answer",
    "output",
    "completion",
    "generation",
)  # of an answer that is an object
_SCORE = ("score", "rating", "overall_score", "reward", "fine-grained_score")
_TWICE, _UNSCORED = "answers that stand twice in their list", "answers without a score"


@dataclass(frozen=True)
class Answer:
    """One answer of a list; aspects: what it was rated by, where it was rated by several."""

    text: str
    score: float | None
    aspects: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ranked:
    """The answers to one prompt, best first; gone counts answers that were not taken, by reason, rated names the aspects of all."""

    prompt: Prompt
    answers: tuple[Answer, ...]
    gone: Mapping[str, int] = field(default_factory=dict)
    rated: frozenset[str] = frozenset()

    @property
    def scores(self) -> list[float]:
        return [a.score for a in self.answers if a.score is not None]

    @property
    def says_nothing(self) -> str:
        """Why nothing can be learned from it; empty where something can."""
        if len(self.answers) < 2:
            return "lists of fewer than two answers with a score"
        return "lists whose answers all have the same score" if len(set(self.scores)) == 1 else ""

    def as_prompt(self) -> Prompt:
        """The prompt with its answers, best first, in `ranked`; the best is also the demonstration."""
        rows = [
            {"text": a.text, "score": a.score, **({"aspects": dict(a.aspects)} if a.aspects else {})}
            for a in self.answers
        ]
        best = self.answers[0].text if self.answers else ""
        return replace(self.prompt, info={**self.prompt.info, "ranked": rows, "demonstration": best})


def list_builder(aspect: str = "") -> Callable[..., Callable[[Raw], Ranked]]:
    """The builder of rows whose answers are scored as a whole, or by this aspect."""

    def builder(columns: dict[str, str], seen: list[str], called: str, layout: Layout) -> Callable[[Raw], Ranked]:
        sided = "chosen" in columns and "rejected" in columns and "responses" not in layout.fields
        holds = "" if sided or not seen else need("responses", columns, seen, called)
        asks = columns.get("question") or columns.get("messages", "")
        if seen and not asks:
            need("question", columns, seen, called)
        used = {columns.get(f) for f in PREFERENCES["lists"] if f not in ("question", "messages")} | {asks}

        def build(row: Raw) -> Ranked:
            for column in filter(None, (asks, holds)):
                if row.get(column) is None:
                    raise ValueError(f"no {column!r} in it")
            answers = _sides(row, columns) if sided else _listed(row, columns, aspect)
            prompt = Prompt("", prompt_of(row, columns, asks), None, {k: v for k, v in row.items() if k not in used})
            return ordered(prompt, answers)

        return build

    return builder


def prompt_of(row: Raw, columns: Mapping[str, str], asks: str) -> tuple[Message, ...]:
    """What is answered: the question or the conversation, with its input and its system message."""
    content = under(conversation_of(row[asks]), cell(row, columns, "input"))
    if content[-1]["role"] == "assistant":
        raise ValueError("the prompt ends with the assistant, so nobody is left to answer")
    return with_system(content, cell(row, columns, "system"))


def ordered(prompt: Prompt, answers: Sequence[Answer]) -> Ranked:
    """Best first; equal scores in the order of the file. Of an answer that stands there twice the better one stays."""
    scored = [a for a in answers if a.score is not None]
    kept: dict[str, Answer] = {}
    for a in sorted(scored, key=lambda a: -(a.score or 0.0)):
        kept.setdefault(a.text, a)
    gone = {_UNSCORED: len(answers) - len(scored), _TWICE: len(scored) - len(kept)}
    rated = frozenset(name for a in answers for name in a.aspects)
    return Ranked(prompt, tuple(kept.values()), {reason: n for reason, n in gone.items() if n}, rated)


def _sides(row: Raw, columns: Mapping[str, str]) -> list[Answer]:
    """Good answers score 1, bad ones 0."""
    out = []
    for side, score in (("chosen", 1.0), ("rejected", 0.0)):
        texts = row.get(columns[side])
        if not is_texts(texts):
            raise ValueError(f"{columns[side]!r} is a list of answers in the first rows, here it is {texts!r:.60}")
        out += [Answer(checked_text(text).strip(), score) for text in texts or ()]
    return out


def is_texts(value: Any) -> bool:
    """A list of one text or more."""
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(x, str) for x in value)


def _listed(row: Raw, columns: Mapping[str, str], aspect: str) -> list[Answer]:
    held = row[columns["responses"]]
    names = list(held) if isinstance(held, Mapping) else None  # {model: answer}
    held = list(held.values()) if isinstance(held, Mapping) else held
    if not isinstance(held, (list, tuple)) or not held:
        raise ValueError(f"{columns['responses']!r} is a list of answers, got {held!r:.60}")
    given = {f: _beside(cell(row, columns, f), len(held), f, names) for f in ("scores", "ranks", "ranking")}
    worth = None if aspect and any(map(aspects_of, held)) else given["scores"]
    if worth is None and not aspect and (given["ranks"] or given["ranking"]):
        worth = list(by_rank(given["ranks"]) if given["ranks"] else by_place(given["ranking"] or []))
    if worth is None and not aspect and all(isinstance(x, Mapping) and "rank" in x for x in held):
        worth = list(by_rank([x["rank"] for x in held]))
    if worth is None and not any(isinstance(x, Mapping) for x in held):
        raise ValueError("nothing says which answer is better: a list has scores or ranks, one for each answer")
    found = []
    for i, one in enumerate(held):
        rated = aspects_of(one)
        score = _own(one, rated, aspect) if worth is None else number(worth[i], "a score")
        found.append(Answer(text_of(one), score, rated))
    return found


def _beside(value: Any, count: int, what: str, names: list[Any] | None) -> list[Any] | None:
    """A list with a value for each answer; by name where the answers are."""
    if value is None:
        return None
    if names is not None and isinstance(value, Mapping):
        return [value.get(name) for name in names]
    if not isinstance(value, (list, tuple)) or len(value) != count:
        got = f"{len(value)} of them" if isinstance(value, (list, tuple)) else f"{value!r:.60}"
        raise ValueError(f"{what}: one for each of {count} answers, got {got}")
    return list(value)


def by_rank(ranks: Sequence[Any]) -> list[float]:
    """Ranks of the answers, 1 (or 0) for the best, as scores: 0 for the best, -1 for the next ..."""
    found, n = [number(r, "a rank") for r in ranks], len(ranks)
    start = 0 if 0 in found else 1
    if sorted(-1.0 if r is None else r for r in found) != [float(k) for k in range(start, n + start)]:
        told = ", ".join(str(r) for r in ranks)
        raise ValueError(f"ranks are {told:.60}; they are 1 to {n}, each once: a place for each answer")
    return [start - r + 0.0 for r in found if r is not None]


def by_place(ranking: Sequence[Any]) -> list[float]:
    """Places of the answers, best first (from 0, or from 1), as scores: 0 for the best, -1 for the next ..."""
    n, start = len(ranking), 0 if 0 in ranking else 1
    if sorted(map(str, ranking)) != sorted(str(k) for k in range(start, n + start)):
        told = ", ".join(str(r) for r in ranking)
        raise ValueError(f"ranking is {told:.60}; it names each of {n} answers once by its place, the best first")
    places = [int(k) - start for k in ranking]
    return [-float(places.index(i)) for i in range(n)]


def text_of(answer: Any) -> str:
    """The text of an answer: itself, a message, or an object with response, text, content ..."""
    if isinstance(answer, Mapping):
        found = next((answer[k] for k in _TEXT if answer.get(k) is not None), None)
        if not isinstance(found, str):
            raise ValueError(f"an answer is a text or an object with {', '.join(_TEXT[:4])} ..., got {answer!r:.60}")
        return checked_text(found).strip()
    if isinstance(answer, str):
        return checked_text(answer).strip()
    before, said = reply(answer)
    if before:
        raise ValueError("an answer of a list is a conversation of its own; put what is asked into the prompt")
    return said


def aspects_of(answer: Any) -> dict[str, float]:
    """Ratings by aspect, as UltraFeedback has them: {"annotations": {"honesty": {"Rating": "5"}}}; those that are none are left out."""
    rated = answer.get("annotations") if isinstance(answer, Mapping) else None
    out: dict[str, float] = {}
    for name, value in rated.items() if isinstance(rated, Mapping) else ():
        one = value[0] if isinstance(value, (list, tuple)) and value else value
        one = (
            next((v for k, v in one.items() if k.lower() in ("rating", "score")), None)
            if isinstance(one, Mapping)
            else one
        )
        score = number(one, f"the rating of {name}")
        out |= {} if score is None else {str(name): score}
    return out


def _own(answer: Any, rated: Mapping[str, float], aspect: str) -> float | None:
    """What an answer that is an object scores: by the aspect that was asked for, else as a whole, else the mean of its aspects."""
    mean = sum(rated.values()) / len(rated) if rated else None
    if aspect == "mean":
        return mean
    if aspect:
        return rated.get(aspect)
    whole = (
        next((answer[k] for k in _SCORE if answer.get(k) is not None), None) if isinstance(answer, Mapping) else None
    )
    found = number(whole, "a score")
    return mean if found is None else found


def check_aspect(aspect: str, lists: Sequence[Ranked]) -> None:
    """An aspect that no answer is rated by is a mistake."""
    known = sorted({name for some in lists for name in some.rated})
    if aspect and aspect != "mean" and aspect not in known:
        raise UserError(f"no answer is rated by {aspect!r}; aspects here are: {', '.join(known) or 'none'}")


def counted(lists: Sequence[Ranked]) -> dict[str, int]:
    """Answers that were not taken, by reason."""
    return dict(sum((Counter(some.gone) for some in lists), Counter[str]()))


def doubts(lists: Sequence[Ranked]) -> list[str]:
    """What is odd about lists, one sentence each."""
    equal = sum(len(set(some.scores)) < len(some.scores) for some in lists)
    empty = sum(not a.text for some in lists for a in some.answers)
    said = {
        f"equal scores: {equal:,} of {len(lists):,} lists have answers of the same score, which stand in the order of the file": equal,
        f"empty: {empty:,} answers have no text": empty,
    }
    return [sentence for sentence, n in said.items() if n]
