"""One kind of preferences as another: what a list says of pairs, and a pair of good and bad answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from posttrain.core.types import Prompt
from posttrain.environments.data import question_of

KINDS = {  # kind of preferences that a rollout may learn from (`Card.data`) -> what a file of it has
    "pairs": "a prompt, chosen and rejected", "lists": "a prompt, responses and scores (or ranks)",
    "labels": "a prompt, a completion and a label (good or bad)",
}  # fmt: skip
CARRIED = {
    "pairs": {"chosen", "rejected"},
    "lists": {"ranked"},
    "labels": {"response", "label"},
}  # keys of a prompt's info
_OWN = (
    "chosen", "rejected", "preferred", "score_chosen", "score_rejected", "votes", "annotators", "ranked", "response", "label",
    "demonstration",
)  # fmt: skip


def compared(prompt: Prompt, kind: str) -> list[Any]:
    """All answers that a prompt carries, the best first: both of a pair, those of a list, the one that is good or bad."""
    if kind == "lists":
        return [answer.get("text") for answer in prompt.info.get("ranked", ())]
    return [prompt.info.get(k) for k in (("chosen", "rejected") if kind == "pairs" else ("response",))]


def carries(prompt: Prompt) -> str:
    """The kind of preferences that a prompt carries; empty for none."""
    return next((kind for kind, keys in CARRIED.items() if keys <= set(prompt.info)), "")


def converted(prompts: Iterable[Prompt], kind: str, want: str, every: bool = False) -> tuple[list[Prompt], str]:
    """Prompts with preferences of one kind as those of another, and a sentence that says what was done; every: of a list, all pairs
    and not only its best and worst answer."""
    if kind == want:
        return list(prompts), ""
    if kind == "labels":
        prompts = list(prompts)
        made = matched(prompts)
        alone = len(prompts) - 2 * len(made)
        said = f"converted: {len(made):,} good answers were paired with a bad one to the same question; {alone:,} answers have no partner"
        return (made if want == "pairs" else [q for p in made for q in listed(p)]), said
    if kind == "pairs":
        prompts = list(prompts)
        decided = [p for p in prompts if p.info.get("preferred") != 0.5]
        made = [q for p in decided for q in (listed(p) if want == "lists" else labelled(p))]
        into = "a list of two" if want == "lists" else "two labelled answers, the preferred one good and the other bad"
        ties = len(prompts) - len(decided)
        return made, f"converted: each pair became {into}" + (
            f"; {ties:,} ties are left out: they have no better answer" if ties else ""
        )
    if want == "pairs":
        made = [q for p in prompts for q in paired(p, every)]
        if every:
            return (
                made,
                f"converted: the lists became {len(made):,} pairs, one of every two answers with different scores",
            )
        return (
            made,
            "converted: each list became one pair, its best and its worst answer; FILE(pairs='all') makes one of every two",
        )
    made = [q for p in prompts for pair in paired(p) for q in labelled(pair)]
    return made, "converted: of each list the best answer became a good one and the worst a bad one"


def _but(prompt: Prompt, suffix: str, **info: Any) -> Prompt:
    """The prompt with these preferences in place of its own."""
    rest = {k: v for k, v in prompt.info.items() if k not in _OWN}
    return replace(prompt, id=f"{prompt.id}{suffix}", info=rest | info)


def paired(prompt: Prompt, every: bool = False) -> list[Prompt]:
    """The best and the worst answer of a list as a pair; every: all two answers with different scores."""
    ranked: Sequence[Any] = prompt.info["ranked"]
    n = len(ranked)
    places = [(a, b) for a in range(n) for b in range(a + 1, n)] if every else [(0, worst(ranked))]
    out = []
    for a, b in places:
        better, worse = ranked[a], ranked[b]
        if better["score"] > worse["score"]:
            both = {"chosen": better["text"], "rejected": worse["text"], "demonstration": better["text"]}
            scores = {"score_chosen": better["score"], "score_rejected": worse["score"]}
            out.append(_but(prompt, f"-{a}-{b}" if every else "", **both, **scores))
    return out


def worst(ranked: Sequence[Any]) -> int:
    """The place of the worst answer, the first of them as the file has them where several are as bad."""
    return next(i for i, answer in enumerate(ranked) if answer["score"] == ranked[-1]["score"])


def listed(prompt: Prompt) -> list[Prompt]:
    """A pair as a list of two; scores are those of the pair where it has both, else 1 and 0."""
    info = prompt.info
    own = (info.get("score_chosen"), info.get("score_rejected"))
    a, b = own if None not in own and own[0] > own[1] else (1.0, 0.0)  # type: ignore[operator]
    ranked = [{"text": info["chosen"], "score": a}, {"text": info["rejected"], "score": b}]
    return [_but(prompt, "", ranked=ranked, demonstration=info["chosen"])]


def matched(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Each good answer with a bad one to the same question, the first with the first, as far as there are both."""
    sides: dict[str, tuple[list[Prompt], list[Prompt]]] = {}
    for p in prompts:
        sides.setdefault(question_of(p), ([], []))[not p.info["label"]].append(p)
    out = []
    for good, bad in sides.values():
        for a, b in zip(good, bad, strict=False):
            if (text := a.info["response"]) != b.info["response"]:
                out.append(_but(a, "", chosen=text, rejected=b.info["response"], demonstration=text))
    return out


def labelled(prompt: Prompt) -> list[Prompt]:
    """A pair as a good and a bad answer, each by itself."""
    return [
        _but(prompt, "-good", response=prompt.info["chosen"], label=True),
        _but(prompt, "-bad", response=prompt.info["rejected"], label=False),
    ]
